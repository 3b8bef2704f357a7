"""Denied access to a path: the file or folder that denies it, its owner, group and mode, and the remedy."""

import errno
import grp
import os
import pwd
import shlex
import stat
from pathlib import Path

from m5ws.errors import M5Error


class PathDenied(M5Error, PermissionError):
    """The system denies this user access to a path."""

    def __init__(self, path: Path) -> None:
        barrier = _find_barrier(path)
        status = barrier.lstat()
        owner, group = user_name(status.st_uid), group_name(status.st_gid)
        mode = stat.filemode(status.st_mode)
        super().__init__(
            f"permission denied: {barrier} belongs to {owner} (group {group}, mode {mode})",
            hint=_find_remedy(barrier, status, owner, group),
        )
        self.errno = errno.EACCES


def _find_barrier(path: Path) -> Path:
    """Return the file or folder that denies access to `path`: the first closed folder above, or the nearest existing.

    Access to a readable file is denied by its folder.
    """
    existing = [place for place in (*reversed(path.absolute().parents), path) if os.path.lexists(place)]
    closed = (place for place in existing if place.is_dir() and not os.access(place, os.X_OK))
    nearest = existing[-1]
    is_readable_file = not nearest.is_dir() and os.access(nearest, os.R_OK)
    return next(closed, nearest.parent if is_readable_file else nearest)


def _find_remedy(barrier: Path, status: os.stat_result, owner: str, group: str) -> str:
    place = shlex.quote(str(barrier))
    if status.st_uid == os.geteuid():
        return f"Run `chmod u+rwX {place}`, then the command again."
    if status.st_gid in (os.getegid(), *os.getgroups()):
        return f"Ask {owner} to run `chmod -R g+rwX {place}`. You are in the group {group}."
    return (
        f"Ask {owner} for access, or run the command as {owner}. "
        "A folder that a team shares has the team's group and mode 2770 (docs/how-to/shared-folder.md)."
    )


def user_name(number: int) -> str:
    """Return the name of a user; the number if the system has no name for it."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def group_name(number: int) -> str:
    """Return the name of a group; the number if the system has no name for it."""
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
