"""The program that limits its own access to files, and becomes a command. All later children inherit the limits.

The kernel refuses each read and write outside of the given places, in any language, also for root. No rights are
needed, and no process can leave the limits (https://docs.kernel.org/userspace-api/landlock.html). `child.py` is before:
a limited process cannot mount. So this file is started as a program, with the standard library alone.
"""

import ctypes
import json
import os
import stat
import struct
import sys
from collections.abc import Iterable, Sequence

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEV = (1 << bit for bit in (0, 1, 2, 3, 14, 15))
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_BITS = {1: 13, 2: 14, 3: 15, 5: 16}
"""Numbers of access rights to files: ABI 2 adds moves between folders, 3 truncation, 5 ioctl of devices."""
LEAST_ABI = 2  # Linux 5.19. Before, the kernel refuses each move of a file to another folder.


def abi() -> int:
    """Return the version of this kernel's Landlock; 0 if the kernel has none, or if it is switched off."""
    try:
        return _call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def rights(version: int) -> int:
    """Return the access rights to files that a version has, as bits. All of them are refused outside of the places."""
    bits: int = max((count for since, count in _BITS.items() if since <= version), default=0)
    return (1 << bits) - 1


def command(argv: Sequence[str], read: Sequence[str], write: Sequence[str]) -> list[str]:
    """Return the command that becomes `argv`, limited to places to read and places to write."""
    return [sys.executable, "-I", "-S", __file__, json.dumps([read, write]), *argv]


def restrict(read: Iterable[str], write: Iterable[str]) -> None:
    """Limit this thread and its children: they read files in both lists of places, and write in the second.

    A place is a folder with all below it, or a file; a missing place is left out. Raises OSError.
    """
    handled = rights(abi())
    ruleset = _call(_CREATE_RULESET, struct.pack("=Q", handled), 8, 0)
    for places, allowed in ((read, _READ), (write, handled)):
        for place in places:
            _allow(ruleset, place, allowed & handled)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl PR_SET_NO_NEW_PRIVS")
    # From here on, the limits hold.
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, place: str, allowed: int) -> None:
    try:
        descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        allowed &= _OF_FILES
    _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", allowed, descriptor), 0)
    os.close(descriptor)


def _call(number: int, *arguments: int | bytes | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(number, *(ctypes.c_long(value) if isinstance(value, int) else value for value in arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())} (Landlock, system call {number})")
    return int(result)


def close_foreign(places: Iterable[str]) -> None:
    """Close the inherited descriptors of files outside of `places`: limits hold for files that are opened later."""
    inside = tuple(place.rstrip(os.sep) + os.sep for place in places)
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            if int(name) > 2 and not f"{target}{os.sep}".startswith(inside):
                os.close(int(name))
        except OSError:  # the descriptor of this list
            pass


def main(places: str, *argv: str) -> None:
    """Limit this process to places, in JSON as of `command`, and become `argv`."""
    read, write = json.loads(places)
    try:
        close_foreign([*read, *write])
        restrict(read, write)
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"m5ws: {argv[0]} could not be started: {error}\n")
        sys.exit(127)


if __name__ == "__main__":
    main(*sys.argv[1:])
