"""The program above all processes of a launch: each of them ends with it, whoever started it.

A process whose parent has ended becomes a child of this program (PR_SET_CHILD_SUBREAPER,
https://man7.org/linux/man-pages/man2/prctl.2.html), also after two forks and in a session of its own. So none escapes.
The launch has ended when its main process and all other processes have. A process that outlives the main process is
named in the file `left`, and ended.

Ranks have a file in the folder of processes, with a text while a session handles signals. SIGTERM goes to the ranks,
and SIGINT also to the processes of ranks without a session, as Ctrl-C in a terminal does. Without ranks, both go to the
main process. SIGQUIT kills all.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

_LEFT = "left"  # `interface.LEFT_PROCESSES`
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_S = 0.02
_SETTLE_S = 2.0
"""Time in which processes end that notice the end of their parent."""
_GRACE_S = 5.0
"""Time to end after SIGTERM for a process that outlived the main process."""
_KILLS = 500
"""Rounds of SIGKILL. A process that waits for a broken device cannot be killed."""


def command(argv: Sequence[str], mount: tuple[str, str] | None, folder: str, patience_s: float) -> list[str]:
    """Return the command that starts `argv` below a reaper, which ends with the calling thread.

    `mount` and `folder` are the mount and the folder of processes of a `LaunchRequest`. When the calling thread ends,
    even by kill -9, the processes get SIGTERM, and are killed `patience_s` later; never if it is 0.
    """
    head = [sys.executable, "-I", "-S", __file__, str(os.getpid()), folder, str(patience_s)]
    return [*head, *(mount or ("", "")), *argv]


class Reaper:
    """All processes below this process. `parent` is the process that launched it."""

    def __init__(self, parent: int, folder: str, patience_s: float) -> None:
        self._parent, self._folder, self._patience_s = parent, folder, patience_s
        self._main: int | None = None
        self._stopping = self._killing = False

    def begin(self) -> None:
        """Adopt orphans, and handle signals from now on. Ends this process if its parent is dead."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for number in (signal.SIGQUIT, signal.SIGALRM):
            signal.signal(number, self._kill)
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
            # A scheduler may send its warning to all processes. Handlers are not inherited, an ignored signal would be.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup(1)
                signal.signal(number, lambda *_: None)
        if sys.platform == "linux":
            libc = ctypes.CDLL(None)
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != self._parent:
            sys.exit(128 + signal.SIGTERM)

    def follow(self, main: int) -> int:
        """Wait for the process `main`, end all other processes, and return the wait status of `main`."""
        self._main = main
        while (ended := os.waitpid(-1, 0))[0] != main:
            pass
        self._end_others()
        return ended[1]

    def _stop(self, number: int, _: FrameType | None) -> None:
        if self._main is None:
            sys.exit(128 + number)
        self._stopping = True
        for pid in self._receivers(number):
            _send(pid, number)
        if os.getppid() != self._parent and self._patience_s:
            signal.setitimer(signal.ITIMER_REAL, self._patience_s)

    def _kill(self, *_: object) -> None:
        self._stopping = self._killing = True
        for pid in descendants(os.getpid()):
            _send(pid, signal.SIGKILL)

    def _receivers(self, number: int) -> set[int]:
        below, ranks, receivers = descendants(os.getpid()), dict(_ranks(self._folder)), set[int]()
        for pid in below & ranks.keys():
            alone = number != signal.SIGINT or ranks[pid]
            receivers |= {pid} if alone else {pid, *descendants(pid)}
        return receivers or {self._main or 0}

    def _end_others(self) -> None:
        if _has_ended(_SETTLE_S):
            return
        if not self._stopping and self._folder:
            lines = [f"{pid} {command_line(pid)}" for pid in sorted(descendants(os.getpid()))]
            Path(self._folder, _LEFT).write_text("\n".join(lines))
        for number in (signal.SIGTERM, *[signal.SIGKILL] * _KILLS):
            for pid in descendants(os.getpid()):
                _send(pid, signal.SIGKILL if self._killing else number)
            if _has_ended(_GRACE_S if number == signal.SIGTERM and not self._killing else _POLL_S):
                return


def descendants(root: int) -> set[int]:
    """Return the living processes below `root`."""
    children: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = file.read_text(errors="replace").rpartition(")")[2].split()[:2]
        except OSError:
            continue
        # A zombie's children have another parent.
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(file.parent.name))
    found, waiting = set[int](), [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting += below
    return found


def command_line(pid: int) -> str:
    """Return the command line of a process as one line; empty if it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return ""
    return " ".join(words.decode(errors="replace").split())


def _ranks(folder: str) -> Iterator[tuple[int, bool]]:
    """Yield the process id of each rank, and True if its session handles signals."""
    for file in Path(folder).glob("[0-9]*") if folder else ():
        yield int(file.name), file.stat().st_size > 0


def _has_ended(timeout_s: float) -> bool:
    """Reap children until none is left; return False if some are left after `timeout_s`."""
    end_s = time.monotonic() + timeout_s
    try:
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                if time.monotonic() >= end_s:
                    return False
                time.sleep(_POLL_S)
    except ChildProcessError:
        return True


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _leave(status: int) -> None:
    """End this process as the main process ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # The first process of a container gets no such signal (pid_namespaces(7)).
        os._exit(128 + number)
    os._exit(os.waitstatus_to_exitcode(status))


def main(parent: str, folder: str, patience_s: str, *child: str) -> None:
    """Start a command, and end as it ends. `child` has the words of child.py after the process id."""
    reaper = Reaper(int(parent), folder, float(patience_s))
    reaper.begin()
    program = str(Path(__file__).with_name("child.py"))
    process = subprocess.Popen([sys.executable, "-I", "-S", program, str(os.getpid()), *child], close_fds=False)
    _leave(reaper.follow(process.pid))


if __name__ == "__main__":
    main(*sys.argv[1:])
