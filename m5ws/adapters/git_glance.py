"""Whether a working tree is as it was, from what git keeps of it: no file is named, and none is asked by us.

Git's index says what each tracked file was like when git last looked: size, owner, inode, and the seconds of mtime
and ctime. `git diff-files` names every file that is not like that any more, without reading it. So an equal index and
equal answers mean equal files, for all that was written in an earlier second than the index: any later change gives a
file another ctime, which nobody can set. What git does not vouch for (files that differ, untracked ones) is asked for
its stamp here (https://git-scm.com/docs/git-diff-files, https://git-scm.com/docs/racy-git).
"""

import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from m5ws.ports import Glance

Start = Callable[[tuple[str, ...]], Callable[[], subprocess.CompletedProcess[bytes]]]
"""Starts git with arguments; what it returns waits for it."""
# Nothing that a user sets may have git look less closely.
_CLOSELY = ("core.checkStat=default", "core.trustctime=true", "core.fileMode=true", "core.ignoreStat=false")
_OPTIONS = tuple(word for setting in (*_CLOSELY, "core.untrackedCache=false") for word in ("-c", setting))
_HEAD = ("rev-parse", "HEAD", "--symbolic-full-name", "HEAD")
_DIFFERENT = (*_OPTIONS, "diff-files", "--raw", "-z", "--no-renames", "--ignore-submodules=none", "--relative")
_NO_FACT = 1
_UNTRACKED = (*_OPTIONS, "ls-files", "-z", "--others", "--exclude-standard")


def begin(root: Path, start: Start, facts: tuple[str, ...]) -> Callable[[], Glance | None]:
    """Have git look at the working tree at `root`, and return what waits for it.

    That is None on an unborn branch, and if git fails. `facts` is the command for what else is to be the same.
    """
    index = _index(root, start)
    try:
        before = os.stat(index)
    except FileNotFoundError:
        return lambda: None
    # The longest first; all are at work before any is waited for.
    waiting = [start(command) for command in (_DIFFERENT, _UNTRACKED, facts, _HEAD)]
    return lambda: _ended(root, index, before, [end() for end in waiting])


def _ended(
    root: Path, index: Path, before: os.stat_result, answers: Sequence[subprocess.CompletedProcess[bytes]]
) -> Glance | None:
    """Return what git's answers come to. A nested repository is None too: git does not look into it."""
    different, untracked, said, head = answers
    try:
        content = index.read_bytes()
        after = os.stat(index)
    except FileNotFoundError:
        return None
    failed = head.returncode or different.returncode or untracked.returncode or said.returncode > _NO_FACT
    if failed or _moved(before, after):
        return None
    others = [path for path in untracked.stdout.split(b"\0") if path and b".m5ws" not in path.split(b"/")]
    if any(path.endswith(b"/") for path in others):
        return None
    loose = _stamps(root, (*_names(different.stdout), *others))
    outputs = (head.stdout, different.stdout, b"\0".join(others), said.stdout)
    return Glance(said=(content, *outputs, loose), indexed_ns=after.st_mtime_ns)


def _index(root: Path, start: Start) -> Path:
    """Return where git keeps its index of the working tree that `root` is in."""
    if (root / ".git").is_dir():
        return root / ".git" / "index"
    return root / os.fsdecode(start(("rev-parse", "--git-path", "index"))().stdout.rstrip(b"\n"))


def _moved(before: os.stat_result, after: os.stat_result) -> bool:
    """Return whether git wrote its index meanwhile: it does so by replacing it."""
    return (before.st_ino, before.st_mtime_ns, before.st_size) != (after.st_ino, after.st_mtime_ns, after.st_size)


def _names(output: bytes) -> Iterable[bytes]:
    """Return the paths in what `diff-files --raw -z` prints: for each file what differs, then its path."""
    return output.split(b"\0")[1::2]


def _stamps(root: Path, paths: Iterable[bytes]) -> bytes:
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
