"""A folder under a path of its own, for one launch: a private mount namespace with a bind mount.

It needs the capability CAP_SYS_ADMIN. Users, groups and devices stay the same, and later mounts outside are visible
inside (https://man7.org/linux/man-pages/man7/mount_namespaces.7.html).
"""

import ctypes
import os
import sys

# Loaded before a fork: a child of a process with threads must not wait for a lock that a thread held.
_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000


def enter(folder: str, path: str) -> None:
    """Mount `folder` at `path`, an empty folder, for this process and its children; change into it. Raises OSError."""
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    # Without this, the mount would be visible to all processes.
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "mount /")
    _check(_libc.mount(os.fsencode(folder), os.fsencode(path), None, _MS_BIND, None), f"mount {path}")
    os.chdir(path)


def possible(folder: str, path: str) -> bool:
    """Return True if `enter` works here. It is tried in a child: a process cannot leave its namespace."""
    if sys.platform != "linux":
        return False
    child = os.fork()
    if child == 0:
        try:
            enter(folder, path)
            os._exit(0)
        except BaseException:  # noqa: BLE001  # after any error, no code of the parent may continue in this process
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _check(result: int, call: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{call}: {os.strerror(error)}")
