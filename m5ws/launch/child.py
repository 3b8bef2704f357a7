"""The program between m5ws and a launched command: it prepares its own process, and becomes the command.

A process with threads, as m5ws is, must not fork and run Python: the child may wait for ever for a lock that another
thread held, or crash in a library's handler. So this file is started as a program, with the standard library alone.

A folder under a path of its own, for one launch, is a private mount namespace with a bind mount. It needs the
capability CAP_SYS_ADMIN. Users, groups and devices stay the same, and later mounts outside are visible inside
(https://man7.org/linux/man-pages/man7/mount_namespaces.7.html).
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_PR_SET_PDEATHSIG = 1
_NOT_STARTED = 127


def command(argv: Sequence[str], mount: tuple[str, str] | None) -> list[str]:
    """Return the command that starts `argv` from this process. `mount`: a folder, and where it is seen."""
    return [sys.executable, "-I", "-S", __file__, "0", *(mount or ("", "")), *argv]


def can_mount(folder: str, path: str) -> bool:
    """Return True if `enter` works here. It is tried in another process: one cannot leave its namespace."""
    if sys.platform != "linux":
        return False
    tried = command((), mount=(folder, path))
    return subprocess.run(tried, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def enter(folder: str, path: str) -> None:
    """Mount `folder` at `path` for this process and its children. Raises OSError.

    The current directory stays the same path, which may lead into the mounted folder now.
    """
    current = os.getcwd()
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS), "unshare")
    # Without this, the mount would be visible to all processes.
    _check(libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "mount /")
    _check(libc.mount(os.fsencode(folder), os.fsencode(path), None, _MS_BIND, None), f"mount {path}")
    os.chdir(current)


def _check(result: int, call: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{call}: {os.strerror(error)}")


def _die_with(parent: int) -> None:
    """Request SIGTERM for the parent's death; end if it is dead already.

    A scheduler may send a warning of a time limit to all processes. It would kill torchrun, and so the ranks in the
    middle of their last checkpoint. Therefore torchrun ignores it. Ranks have handlers (training/rank.py).
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(143)


def main(parent: int, folder: str, path: str, *argv: str) -> None:
    """Prepare this process, and become `argv` if it is given. `parent`: the process to die with, or 0."""
    if parent:
        _die_with(parent)
    try:
        if folder:
            enter(folder, path)
        if argv:
            os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"m5ws: {argv[0] if argv else path} could not be started: {error}\n")
        sys.exit(_NOT_STARTED)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
