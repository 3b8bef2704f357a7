"""Ends as its arguments select: `ends.py HOW…`, one argument per rank.

A waiting rank first writes its id to ENDS/<rank>.
"""

import atexit
import os
import signal
import subprocess
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
        if number == signal.SIGTERM:
            os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
    sys.exit(0)


if how == "waits":
    signal.signal(signal.SIGTERM, last_words)
    ready()
    time.sleep(600)
elif how == "waits with a worker":
    read_end, write_end = os.pipe()
    worker = os.fork()
    rank = -1 if worker == 0 else rank
    signal.signal(signal.SIGTERM, last_words)
    signal.signal(signal.SIGINT, last_words)
    if worker:
        os.read(read_end, 1)  # The worker takes signals too now.
        ready()
    else:
        os.write(write_end, b"1")
    time.sleep(600)
elif how == "leaves a process":
    if (middle := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            ready()
            time.sleep(600)
        os._exit(0)
    os.waitpid(middle, 0)
    while not Path(os.environ["ENDS"], str(rank)).exists():
        time.sleep(0.01)
elif how == "spawns":
    for number in (1, 2):
        code = f"import os, time; open('{number}', 'w').write(str(os.getpid())); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code], cwd=os.environ["ENDS"])
    while len(list(Path(os.environ["ENDS"]).glob("[12]"))) < 2:
        time.sleep(0.01)
    ready()
    # As multiprocessing joins its processes, also at exit.
    atexit.register(lambda: [os.wait(), os.wait()])
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
