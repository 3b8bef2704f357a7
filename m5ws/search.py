"""Looks at all below some paths, by several `find`: Python takes twice as long, and can do nothing else then."""

import os
import stat

from m5ws import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ABSENT = "absent"
_SHOWN = r"%y %m %s %T@ %C@ %i %D %p\0"
"""Of each file what changes with it, the times to the nanosecond, and at its end the path."""
_LINK = b"l"
_NEVER = (".git", ".m5ws")
_FIND = ("(", "-name", _NEVER[0], "-o", "-name", _NEVER[1], ")", "-prune", "-o", "-printf", _SHOWN)
_MOST_BYTES = 32 * 2**20
"""What `find` says of 100,000 files, and more."""
_MOST_ROUNDS = 64
"""Folders that links lead to are looked through after what the links lie in."""
_MOST_DEALT = 1000
_SIDE_BY_SIDE = 4


class Unclear(Exception):
    """Below this path is more than is looked at, or there is nothing to look with."""


class Search:
    """A look at all below some paths."""

    def __init__(self, paths: "Sequence[str]") -> None:
        """Begin. Raises OSError, and Unclear where there is no `find`."""
        self._paths = paths
        self._at_work = _begun(paths)

    def end(self) -> "tuple[list[bytes], Iterable[int]]":
        """Return what there is to be seen, and when it changed (nanoseconds).

        Raises OSError, and Unclear where it is too much, or `find` failed.
        """
        seen, dates = list[bytes](), list["Iterable[int]"]()
        folders, known, left_bytes = [*self._paths], {*self._paths}, _MOST_BYTES
        for _ in range(_MOST_ROUNDS):
            for folder in folders:
                text, changed_ns, _ = stamps(folder)
                seen.append(os.fsencode(text))
                dates.append((changed_ns,))
            at_work, self._at_work = self._at_work, []
            below = spawn.ends(at_work, left_bytes)
            if below is None or not all(map(_is_told, below)):
                raise Unclear(folders)
            folders = []
            for shown in below:
                left_bytes -= len(shown)
                seen.append(shown)
                dates.append(_dates(shown))
                for end in _linked(shown, seen, dates):
                    if end not in known:
                        known.add(end)
                        folders.append(end)
            if not folders:
                return seen, (date for some in dates for date in some)
            self._at_work = _begun(folders)
        raise Unclear(folders)

    def stop(self) -> None:
        """End what nobody has waited for."""
        while self._at_work:
            self._at_work.pop().stop()


def _begun(paths: "Sequence[str]") -> list[spawn.Started]:
    """Begin to look at all below `paths`, but not at themselves, if they are folders."""
    if not paths:
        return []
    program = spawn.found("find", os.environ, os.getcwd())
    # Nothing that begins otherwise is a path to `find`, which can do other things than look.
    if program is None or not all(path.startswith("/") for path in paths):
        raise Unclear(paths)
    begin = list[str]()
    for path in paths:
        try:
            below = [os.path.join(path, name) for name in sorted(os.listdir(path)) if name not in _NEVER]
        except (FileNotFoundError, NotADirectoryError):
            continue
        begin += below if len(begin) + len(below) <= _MOST_DEALT else [f"{path}/"]
    started = list[spawn.Started]()
    try:
        for first in range(min(_SIDE_BY_SIDE, len(begin))):
            words = ["find", *begin[first::_SIDE_BY_SIDE], *_FIND]
            started.append(spawn.start(program, words, {"LC_ALL": "C"}))
    except OSError:
        for one in started:
            one.stop()
        raise
    return started


def _is_told(shown: bytes) -> bool:
    """Return whether `find` tells stamps, by the first of them: another one than GNU's may say anything."""
    try:
        kind, mode, size, changed, moved, inode, device, path = shown[: shown.index(b"\0")].split(b" ", 7)
        told = (int(mode, 8), int(size), _date(changed), _date(moved), int(inode), int(device))
    except ValueError:
        return False
    found = os.lstat(path)
    own = (stat.S_IMODE(found.st_mode), found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev)
    return told == own and (kind == _LINK) == stat.S_ISLNK(found.st_mode)


def _linked(shown: bytes, seen: list[bytes], dates: "list[Iterable[int]]") -> "Iterator[str]":
    """Add what the links among what is shown lead to, and yield the folders."""
    if not shown.startswith(_LINK) and b"\0" + _LINK not in shown:
        return
    for line in shown.split(b"\0"):
        if line.startswith(_LINK):
            link = os.fsdecode(line.split(b" ", 7)[7])
            text, changed_ns, folder = stamps(link)
            seen.append(os.fsencode(text))
            dates.append((changed_ns,))
            if folder:
                yield os.path.realpath(link)


def _dates(shown: bytes) -> "Iterator[int]":
    """Yield when each file that is shown changed, its content or whatever else."""
    for line in shown.split(b"\0")[:-1]:
        yield from map(_date, line.split(b" ", 5)[3:5])


def _date(told: bytes) -> int:
    """Return nanoseconds of seconds as `find` tells them."""
    seconds, _, rest = told.partition(b".")
    return int(seconds) * 10**9 + int(rest[:9])


def stamps(path: str) -> tuple[str, int, bool]:
    """Return the stamps of a path and of what a link leads to, when that changed, and whether it is a folder."""
    try:
        own = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT, 0, False
    text, changed_ns = _stamp(own), max(own.st_mtime_ns, own.st_ctime_ns)
    if not stat.S_ISLNK(own.st_mode):
        return text, changed_ns, stat.S_ISDIR(own.st_mode)
    text = f"{text} {os.path.realpath(path)}"
    try:
        end = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return f"{text} {ABSENT}", changed_ns, False
    return f"{text} {_stamp(end)}", max(changed_ns, end.st_mtime_ns, end.st_ctime_ns), stat.S_ISDIR(end.st_mode)


def _stamp(found: os.stat_result) -> str:
    return f"{found.st_mode} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino} {found.st_dev}"
