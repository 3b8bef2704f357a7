"""Processes that start at once and are killed at a given moment: children of a process with all imports.

`python tests/support/ranks/warm.py SCRIPT` is that parent. It runs the functions in SCRIPT's `VERBS`, each call in a
fork of its own, and has no thread, since a fork copies none. It keeps the moments itself, and kills before it waits:
the killed process is never another process with the same id.
"""

import faulthandler
import gc
import os
import runpy
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import msgspec

from tests.support.paths import ROOT


class Ended(msgspec.Struct, frozen=True):
    """The end of a process: killed, or a status of its own; its output, and its duration."""

    killed: bool
    status: int
    said: str
    seconds: float


class _Call(msgspec.Struct, frozen=True):
    verb: str
    arguments: list[str]
    moment_s: float | None
    until: str | None


class Warm:
    """The parent of processes of one script. Use it in a `with`."""

    def __init__(self, script: Path) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, __file__, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    def __enter__(self) -> "Warm":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._parent.communicate()

    def run(self, verb: str, *arguments: object, moment_s: float | None = None, until: Path | None = None) -> Ended:
        """Run a verb in a new process.

        Unless it has ended, it is killed `moment_s` seconds after its start, or as soon as the file `until` exists.
        """
        assert self._parent.stdin is not None and self._parent.stdout is not None
        call = _Call(verb, [str(argument) for argument in arguments], moment_s, str(until) if until else None)
        self._parent.stdin.write(msgspec.json.encode(call) + b"\n")
        self._parent.stdin.flush()
        ended = msgspec.json.decode(self._parent.stdout.readline(), type=Ended)
        assert ended.killed or ended.status == 0, f"{verb} ended with {ended.status}; its traceback is on stderr"
        return ended


def _serve(script: str) -> None:
    verbs: dict[str, Callable[..., None]] = runpy.run_path(script)["VERBS"]
    faulthandler.enable()
    gc.collect()
    gc.freeze()
    answers = os.dup(1)
    for line in sys.stdin.buffer:
        assert os.listdir("/proc/self/task") == [str(os.getpid())]
        call = msgspec.json.decode(line, type=_Call)
        os.write(answers, msgspec.json.encode(_run(verbs[call.verb], call)) + b"\n")


def _run(function: Callable[..., None], call: _Call) -> Ended:
    said, writes = os.pipe()
    began_s = time.monotonic()
    child = os.fork()
    if child == 0:
        _become(function, call.arguments, writes)
    os.close(writes)
    watch = os.pidfd_open(child)
    if not _has_ended(watch, call):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    seconds = time.monotonic() - began_s
    with open(said, "rb") as pipe:
        text = pipe.read().decode()
    os.close(watch)
    code = os.waitstatus_to_exitcode(status)
    return Ended(killed=code == -signal.SIGKILL, status=code, said=text, seconds=seconds)


def _has_ended(watch: int, call: _Call) -> bool:
    """Wait until the process has ended or is to be killed; return True if it has ended."""
    if call.until is None:
        return bool(select.select([watch], [], [], call.moment_s)[0])
    while not os.path.exists(call.until):
        if select.select([watch], [], [], 0.05)[0]:
            return True
    return False


def _become(function: Callable[..., None], arguments: list[str], writes: int) -> None:
    """Act as the requested process. Never returns."""
    status = 1
    try:
        os.dup2(writes, 1)
        function(*arguments)
        sys.stdout.flush()
        status = 0
    except BaseException:  # noqa: BLE001  # whatever it is, no code of the parent may go on in this process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve(sys.argv[1])
