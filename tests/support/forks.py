"""Ranks that are forks of a process which has imported torch: a launch takes milliseconds instead of seconds.

`Forks` is that process, and `ForkLauncher` a `ports.Launcher` on it. A fork stands where torchrun does: it starts the
ranks, hands SIGTERM on to them, ends the others when one fails, and leaves its status in a file.
"""

import ctypes
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType

import msgspec

from m5ws.launches import LaunchRequest
from m5ws.ports import Process

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.005
_LAST_S = 5.0
"""Given to the other ranks when one has failed."""


class _Call(msgspec.Struct, frozen=True):
    ranks: int
    command: list[str]
    environment: dict[str, str]
    cwd: str
    log: str


class Forks:
    """The parent of all ranks. Use it in a `with`; threads may share it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._parent = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(environment)
        )

    def __enter__(self) -> "Forks":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._parent.communicate()

    def start(self, call: _Call) -> int:
        """Return the process that stands for all ranks of a launch."""
        assert self._parent.stdin is not None and self._parent.stdout is not None
        with self._lock:
            self._parent.stdin.write(msgspec.json.encode(call) + b"\n")
            self._parent.stdin.flush()
            return int(self._parent.stdout.readline())


class ForkLauncher:
    """`ports.Launcher`; `environment` is what ranks inherit."""

    def __init__(self, forks: Forks, environment: Mapping[str, str]) -> None:
        self._forks = forks
        self._environment = dict(environment)

    def launch(self, request: LaunchRequest) -> Process:
        """Start the ranks that torchrun would start."""
        said = list(request.argv)
        ranks = int(said[said.index("--nproc-per-node") + 1])
        command = said[said.index("--") + 1 :]
        Path(request.log).parent.mkdir(parents=True, exist_ok=True)
        environment = self._environment | request.environment
        call = _Call(ranks, command, environment, request.cwd, request.log)
        return _Forked(self._forks.start(call), _status_file(request.log))


class _Forked:
    """`ports.Process` of forked ranks."""

    def __init__(self, pid: int, status: Path) -> None:
        self._pid, self._status = pid, status

    @property
    def pid(self) -> int:
        return self._pid

    def poll(self) -> int | None:
        alive = _signalled(self._pid, 0)
        if self._status.exists():
            return int(self._status.read_text())
        return None if alive else -signal.SIGKILL

    def stop(self, grace_s: float) -> int:
        end_s = time.monotonic() + grace_s
        _signalled(self._pid, signal.SIGTERM)
        while (status := self.poll()) is None:
            if time.monotonic() > end_s:
                _signalled(self._pid, signal.SIGKILL)
            time.sleep(_POLL_S)
        return status


def _signalled(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _status_file(log: str) -> Path:
    return Path(log).with_suffix(".status")


# --- in the parent of all ranks -----------------------------------------------------------------------------------


def _serve() -> None:
    for name in (
        "torch._inductor",
        "torch.distributed.fsdp",
        "m5ws.training.rank",
        "m5ws.training.dcp",
        "m5ws.training.session",
    ):
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for a launch: its status is in a file.
    answers = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        call = msgspec.json.decode(line, type=_Call)
        child = os.fork()
        if child == 0:
            _be_launch(call)
        os.write(answers, f"{child}\n".encode())


def _be_launch(call: _Call) -> None:
    """Be what torchrun is to a launch. Never returns."""
    os.setsid()
    _end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 1
    try:
        port = _free_port()
        ranks = [_fork_rank(number, port, call) for number in range(call.ranks)]

        def hand_on(number: int, _: FrameType | None) -> None:
            for rank in ranks:
                _signalled(rank, number)

        signal.signal(signal.SIGTERM, hand_on)
        status = _waited(ranks)
    except BaseException:  # noqa: BLE001  # whatever it is, no code of the parent may go on in this process
        traceback.print_exc()
    finally:
        file = _status_file(call.log)
        file.with_suffix(".part").write_text(str(status))
        file.with_suffix(".part").rename(file)
        os._exit(0)


def _waited(ranks: list[int]) -> int:
    """Wait for all ranks; when one fails, the others are ended. Return the first failure's status, or 0."""
    left, status, end_s = set(ranks), 0, float("inf")
    while left:
        for rank in list(left):
            found, code = os.waitpid(rank, os.WNOHANG)
            if found:
                left.discard(rank)
                status = status or os.waitstatus_to_exitcode(code)
        if status and end_s == float("inf"):
            end_s = time.monotonic() + _LAST_S
            for rank in left:
                os.kill(rank, signal.SIGTERM)
        if time.monotonic() > end_s:
            for rank in left:
                os.kill(rank, signal.SIGKILL)
        time.sleep(_POLL_S)
    return status


def _fork_rank(number: int, port: int, call: _Call) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": call.ranks, "LOCAL_WORLD_SIZE": call.ranks}
        os.environ.clear()
        os.environ.update(call.environment | {name: str(value) for name, value in place.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.chdir(call.cwd)
        importlib.invalidate_caches()
        from m5ws.training import rank

        status = rank.main(call.command)
    except BaseException:  # noqa: BLE001  # as above
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


if __name__ == "__main__":
    _serve()
