"""The location of a tracking store. The embedded store is a SQLite file; any other store is external."""

from pathlib import Path

_SQLITE = "sqlite:///"
SCHEME = "m5ws://"
"""Of the locations of runs' files in stores (artifacts.py)."""


def database(tracking_uri: str) -> Path | None:
    """Return the absolute path of an embedded tracking store; None for a server or another database."""
    if not tracking_uri.startswith(_SQLITE):
        return None
    return Path(tracking_uri.removeprefix(_SQLITE)).absolute()


def artifacts_dir(tracking_uri: str) -> Path | None:
    """Return the folder for files that scripts log to the embedded store; None for a server."""
    path = database(tracking_uri)
    return path.parent / "mlartifacts" if path else None


def location(tracking_uri: str, store_id: str | None) -> str | None:
    """Return the location of the artifacts of a new experiment; None for the tracking store's own."""
    if (artifacts := artifacts_dir(tracking_uri)) is not None:
        return artifacts.as_uri()
    return f"{SCHEME}{store_id}" if store_id else None


def is_server(tracking_uri: str) -> bool:
    """Return True if the tracking store is a server, which has its own UI."""
    return tracking_uri.startswith(("http://", "https://"))
