"""The location of a tracking store. The embedded store is a SQLite file; any other store is external."""

from pathlib import Path

_SQLITE = "sqlite:///"


def database(tracking_uri: str) -> Path | None:
    """Return the absolute path of an embedded tracking store; None for a server or another database."""
    if not tracking_uri.startswith(_SQLITE):
        return None
    return Path(tracking_uri.removeprefix(_SQLITE)).absolute()


def artifacts_dir(tracking_uri: str) -> Path | None:
    """Return the folder for files that scripts log to the embedded store; None for a server."""
    path = database(tracking_uri)
    return path.parent / "mlartifacts" if path else None


def is_server(tracking_uri: str) -> bool:
    """Return True if the tracking store is a server, which has its own UI."""
    return tracking_uri.startswith(("http://", "https://"))
