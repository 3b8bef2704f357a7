"""The error that ended a rank's script, as a record.

An error of a loader's worker is described by its own type, text and place, and a worker that was killed by its signal.
"""

import multiprocessing
import os
import re
import signal
import traceback
from multiprocessing import connection
from pathlib import Path

from m5ws import secret_scan
from m5ws.records.failure import Failure

_CAUGHT = re.compile(r"Caught \w+ in DataLoader worker process (\d+)\.\nOriginal Traceback ")
"""Begin of an error's text that torch raises again in the process of the loader (torch 2.13, `torch/_utils.py`)."""
_LAST_FRAME = re.compile(
    r'.*^  File "([^"\n]+)", line (\d+), in [^\n]*\n(?: [^\n]*\n)*(\S.*)', re.DOTALL | re.MULTILINE
)
_WORKER_S = 1.0
"""The longest wait for the death of a worker."""


def find_failure(error: BaseException) -> Failure:
    """Return the type, the text and the place of an error, without secrets."""
    text = str(error).rstrip()
    if (caught := _CAUGHT.match(text)) and (last := _LAST_FRAME.match(text)):
        file, line, own = last.groups()
        kind, _, text = secret_scan.masked(own).partition(": ")
        return Failure(type=kind, text=text, place=f"{Path(file).name}:{line}", worker=int(caught[1]))
    return Failure(type=type(error).__name__, text=secret_scan.masked(text), place=_place(error))


def find_worker_error(error: BaseException) -> BaseException:
    """Return torch's error of a loader's worker that was killed, if its death broke a connection; else `error`.

    Torch's handler of SIGCHLD raises it, and may not have been called yet: the connections of a process are closed
    before its parent gets the signal.
    """
    check = signal.getsignal(signal.SIGCHLD)
    if not isinstance(error, (ConnectionError, EOFError)) or not callable(check):
        return error
    try:
        check(signal.SIGCHLD, None)
        workers = multiprocessing.active_children()
        ended = connection.wait([worker.sentinel for worker in workers], _WORKER_S) if workers else ()
        for worker in workers:
            if worker.sentinel in ended and worker.pid is not None:
                os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        check(signal.SIGCHLD, None)
    except (RuntimeError, OSError) as killed:
        return killed.with_traceback(error.__traceback__) if isinstance(killed, RuntimeError) else error
    return error


def _place(error: BaseException) -> str | None:
    """Return the innermost frame of an error, as FILE:LINE; one of m5ws or of an import only without others."""
    every = traceback.extract_tb(error.__traceback__)
    own = str(Path(secret_scan.__file__).parent)
    frames = [frame for frame in every if not frame.filename.startswith((own, "<frozen importlib"))] or every
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None
