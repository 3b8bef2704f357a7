"""Location of the workspace. It imports only `os`, because the program needs it before any other import."""

import os

FILE = "m5ws.toml"
STATE = ".m5ws"


def nearest(start: str) -> str | None:
    """Return the nearest directory from `start` (absolute) upwards with an `m5ws.toml`, or None."""
    folder = start
    while not os.path.isfile(os.path.join(folder, FILE)):
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            return None
    return folder
