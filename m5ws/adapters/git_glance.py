"""Whether a working tree is as it was, from what git keeps of it: no file is named, and none is asked by us.

Git's index says what each tracked file was like when git last looked: size, owner, inode, and the seconds of mtime
and ctime. `git diff-files` names every file that is not like that any more, without reading it. So an equal index and
equal answers mean equal files, for all that was written in an earlier second than the index: any later change gives a
file another ctime, which nobody can set. What git does not vouch for (files that differ, untracked ones) is asked for
its stamp here (https://git-scm.com/docs/git-diff-files, https://git-scm.com/docs/racy-git).
"""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from m5ws.adapters import git_start
from m5ws.ports import Glance

_NO_FACT = 1


def begin(root: Path, environment: Mapping[str, str]) -> Callable[[], Glance | None]:
    """Have git look at the working tree at `root`, a real path, and return what waits for it.

    That is None on an unborn branch, and if git fails. Raises GitError if there is no git.
    """
    try:
        return partial(_ended, git_start.look(os.fspath(root), environment))
    except FileNotFoundError:
        return lambda: None


def _ended(looking: git_start.Looking) -> Glance | None:
    """Return what git's answers come to. A nested repository is None too: git does not look into it."""
    different, untracked, said, head = (end() for end in looking.ends)
    try:
        content = Path(looking.index).read_bytes()
        after = os.stat(looking.index)
    except FileNotFoundError:
        return None
    failed = head.returncode or different.returncode or untracked.returncode or said.returncode > _NO_FACT
    if failed or _moved(looking.before, after):
        return None
    others = [path for path in untracked.stdout.split(b"\0") if path and b".m5ws" not in path.split(b"/")]
    if any(path.endswith(b"/") for path in others):
        return None
    loose = _stamps(looking.root, (*_names(different.stdout), *others))
    outputs = (head.stdout, different.stdout, b"\0".join(others), said.stdout)
    return Glance(said=(content, *outputs, loose), indexed_ns=after.st_mtime_ns)


def _moved(before: os.stat_result, after: os.stat_result) -> bool:
    """Return whether git wrote its index meanwhile: it does so by replacing it."""
    return (before.st_ino, before.st_mtime_ns, before.st_size) != (after.st_ino, after.st_mtime_ns, after.st_size)


def _names(output: bytes) -> Iterable[bytes]:
    """Return the paths in what `diff-files --raw -z` prints: for each file what differs, then its path."""
    return output.split(b"\0")[1::2]


def _stamps(root: str, paths: Iterable[bytes]) -> bytes:
    """Return, as text, what must be equal for files to count as unchanged."""
    lines = list[str]()
    for path in paths:
        try:
            found = os.lstat(os.path.join(os.fsencode(root), path))
        except OSError:
            lines.append("absent")
            continue
        lines.append(f"{found.st_mode} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}")
    return "\n".join(lines).encode()
