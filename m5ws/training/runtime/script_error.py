"""The error that ended a rank's script: its text for the record, and its likely origin.

An error of a loader's worker is described by its own type, text and place, and a worker that was killed by its signal.
"""

import dis
import multiprocessing
import os
import re
import signal
import traceback
from collections.abc import Iterator
from multiprocessing import connection
from pathlib import Path
from types import TracebackType

from m5ws import secret_scan

_CAUGHT = re.compile(r"Caught \w+ in DataLoader worker process (\d+)\.\nOriginal Traceback ")
"""Begin of an error's text that torch raises again in the process of the loader (torch 2.13, `torch/_utils.py`)."""
_LAST_FRAME = re.compile(
    r'.*^  File "([^"\n]+)", line (\d+), in [^\n]*\n(?: [^\n]*\n)*(\S.*)', re.DOTALL | re.MULTILINE
)
_WORKER_S = 1.0
"""The longest wait for the death of a worker."""


def describe(error: BaseException) -> str:
    """Return the type, the text and the place of an error, without secrets."""
    text, place = str(error).rstrip(), _place(error)
    if (caught := _CAUGHT.match(text)) and (last := _LAST_FRAME.match(text)):
        file, line, own = last.groups()
        return secret_scan.masked(f"{own} ({Path(file).name}:{line}, loader worker {caught[1]})")
    return secret_scan.masked(f"{type(error).__name__}{': ' if text else ''}{text}{place}")


def is_raised(error: BaseException) -> bool:
    """Return True if a `raise` statement raised the error, and each RuntimeError that it was raised after.

    Compiled code, such as a collective, raises errors in a call.
    """
    return _has_raised(error) and all(_has_raised(each) for each in _chain(error) if isinstance(each, RuntimeError))


def describe_origin(error: BaseException) -> str:
    """Return the text of `describe`, with the error that was being handled when compiled code raised this one.

    Such as that of a script whose `finally` calls a collective, which fails too.
    """
    handled = None if _has_raised(error) else next(filter(_has_raised, _chain(error)), None)
    return describe(error) + (f" while handling {describe(handled)}" if handled is not None else "")


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


def _has_raised(error: BaseException) -> bool:
    innermost: TracebackType | None = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is None:
        return False
    return dis.opname[innermost.tb_frame.f_code.co_code[innermost.tb_lasti]] == "RAISE_VARARGS"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that were being handled when `error` was raised, the newest first."""
    seen = {id(error)}
    before = error.__cause__ or error.__context__
    while before is not None and id(before) not in seen:
        seen.add(id(before))
        yield before
        before = before.__cause__ or before.__context__


def _place(error: BaseException) -> str:
    """Return the innermost frame of an error, as " (FILE:LINE)"; one of m5ws or of an import only without others."""
    every = traceback.extract_tb(error.__traceback__)
    own = str(Path(secret_scan.__file__).parent)
    frames = [frame for frame in every if not frame.filename.startswith((own, "<frozen importlib"))] or every
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
