"""Ends as its arguments select: `ends.py HOW…`, one argument per rank.

A waiting rank first writes its id to ENDS/<rank>.
"""

import os
import signal
import sys
import time
from pathlib import Path

rank = int(os.environ.get("RANK", "0"))
how = sys.argv[1 + rank]


def ready() -> None:
    part = Path(os.environ["ENDS"], f"{rank}.part")
    part.write_text(str(os.getpid()))
    part.rename(part.with_suffix(""))


worker = 0


def last_words(number: int, frame: object) -> None:
    Path(os.environ["ENDS"], f"{rank}.ended").touch()
    if worker:
        os.kill(worker, signal.SIGKILL)
    sys.exit(0)


if how == "waits":
    signal.signal(signal.SIGTERM, last_words)
    ready()
    time.sleep(600)
elif how == "waits with a worker":
    worker = os.fork()
    rank = -1 if worker == 0 else rank
    signal.signal(signal.SIGTERM, last_words)
    if worker:
        ready()
    time.sleep(600)
elif how == "stays":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready()
    time.sleep(600)
elif how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
elif how == "raises":
    raise RuntimeError("as it was told")
else:
    sys.exit(int(how))
