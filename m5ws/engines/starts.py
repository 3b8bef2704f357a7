"""A process that starts an agent, again where its end asks for that, and passes on the signals of a scheduler.

A shell cannot do this: if a signal comes at the end of a process, `wait` of bash 5.2 returns -1 and loses the status.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

_AGAIN = 75
"""The exit status of `m5ws agent` that asks for the next start of all agents."""


def command(python: str, agent: Sequence[str], passed: signal.Signals, restarts: int = 0) -> tuple[str, ...]:
    """Return the words that `run` an agent, with a Python of the node."""
    return (python, "-P", "-m", "m5ws.engines.starts", passed.name, str(restarts), *agent)


def run(words: Sequence[str], passed: signal.Signals, restarts: int = 0) -> int:
    """Run a command until it ends for good, and return its last status. A death by a signal is the status 75.

    Status 75 asks for the next start. SIGTERM and SIGINT reach the command as the signal `passed`, and no start comes
    after them.
    """
    is_asked = False
    process: subprocess.Popen[bytes] | None = None

    def pass_on(_: int, __: FrameType | None) -> None:
        nonlocal is_asked
        is_asked = True
        if process is not None:
            process.send_signal(passed)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    while True:
        process = subprocess.Popen(words)
        if is_asked:  # while there was no process to tell
            process.send_signal(passed)
        status = process.wait()
        # Above 130, a program between here and the agent reports the signal.
        status = _AGAIN if status < 0 or status > 130 else status
        if is_asked or not restarts or status != _AGAIN:
            return status
        restarts -= 1


if __name__ == "__main__":
    # The end of Python itself would reset the handlers of signals.
    os._exit(run(sys.argv[3:], signal.Signals[sys.argv[1]], int(sys.argv[2])))
