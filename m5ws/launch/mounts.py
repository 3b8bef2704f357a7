"""A folder under a path of its own, for one launch: a private mount namespace with a bind mount.

It needs the capability CAP_SYS_ADMIN and changes nothing else: users, groups and devices are as outside, and what is
mounted outside later is seen inside (https://man7.org/linux/man-pages/man7/mount_namespaces.7.html).
"""

import ctypes
import os
import sys

# Loaded before a fork: a child of a process with threads must not wait for a lock that a thread held.
_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000


def enter(folder: str, path: str) -> None:
    """Have this process and its children see `folder` at `path`, an empty folder, and be there. Raises OSError."""
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    # Or the mount would be everybody's.
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "mount /")
    _check(_libc.mount(os.fsencode(folder), os.fsencode(path), None, _MS_BIND, None), f"mount {path}")
    os.chdir(path)


def possible(folder: str, path: str) -> bool:
    """Return True if `enter` works here, tried in a child: a namespace cannot be left again."""
    if sys.platform != "linux":
        return False
    child = os.fork()
    if child == 0:
        try:
            enter(folder, path)
            os._exit(0)
        except BaseException:  # noqa: BLE001  # whatever it is, no code of the parent may go on in this process
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
