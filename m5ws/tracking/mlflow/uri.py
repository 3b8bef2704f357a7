"""Where a tracking store lies: the embedded one is a SQLite file, any other belongs to somebody else."""

from pathlib import Path

_SQLITE = "sqlite:///"


def database(tracking_uri: str) -> Path | None:
    """Return the file of an embedded tracking store, absolute; None for a server or another database."""
    if not tracking_uri.startswith(_SQLITE):
        return None
    return Path(tracking_uri.removeprefix(_SQLITE)).absolute()


def artifacts_dir(tracking_uri: str) -> Path | None:
    """Return the folder for files that scripts log to the embedded store; None where a server says."""
    path = database(tracking_uri)
    return path.parent / "mlartifacts" if path else None


def is_server(tracking_uri: str) -> bool:
    """Return whether the tracking store is a server, which has a UI of its own."""
    return tracking_uri.startswith(("http://", "https://"))
