"""A script whose process gets SIGTERM many times when it has ended.

Called as: signalled.py LINE. The first signal comes before that line of the code that records the end, counted in the
order of execution.
"""

import itertools
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import m5ws

_RECORDS_THE_END = (
    "training/rank.py",
    "training/runtime/context.py",
    "training/runtime/stop.py",
    "repository/ledger/spool.py",
)
_FILES = {str(Path(m5ws.__file__).parent / name) for name in _RECORDS_THE_END}
line = itertools.count(1)
rank = os.getpid()
reader, writer = os.pipe()


def trace(frame: FrameType, event: str, _: Any) -> Any:
    if frame.f_code.co_filename not in _FILES:
        return None
    if event == "line" and next(line) == int(sys.argv[1]):
        # An error in a trace function ends the tracing, so another process sends the other signals.
        os.write(writer, b"now")
        os.kill(rank, signal.SIGTERM)
    return trace


if os.fork() == 0:
    os.close(writer)
    if os.read(reader, 3):
        while os.getppid() == rank:
            os.kill(rank, signal.SIGTERM)
            time.sleep(1e-5)
    os._exit(0)
caller: FrameType | None = sys._getframe()
while caller is not None:
    if caller.f_code.co_filename in _FILES:
        caller.f_trace = trace
    caller = caller.f_back
sys.settrace(trace)
