"""Where a workspace lies. As light as can be: the program looks before it imports anything else."""

import os

FILE = "m5ws.toml"
STATE = ".m5ws"


def nearest(start: str) -> str | None:
    """Return the nearest directory from `start` (absolute) upwards with an `m5ws.toml`, or None."""
    here = start
    while not os.path.isfile(os.path.join(here, FILE)):
        here, below = os.path.dirname(here), here
        if here == below:
            return None
    return here
