"""The answer of a `m5ws snapshot` that found nothing new, given again while all that it rests on is as it was.

The whole command notes what it looked at (`operations/repeat.py`): settings, files and folders with their stamps, the
store's objects, what git said, and who asked. A note is sure once all of it was the same before a command and after it;
then the same answer needs nothing else to be imported. Anything else, a note that cannot be read too, is answered by
the whole command.
"""

import os
import stat
import sys

import blake3

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

NAME = "again"
FILE, OBJECT, FOLDER, BELOW = "file", "object", "folder", "below"
"""What is asked of a path: its stamps, its length as an object, which folder it is, the stamps of all below it."""

Witness = tuple[str, str]
"""What is asked, and of which path."""
Note = tuple[bytes, bytes, bytes, bytes, bytes, dict[Witness, bytes]]
"""Whether it is sure, who asked, what source control said, stdout, stderr, and what was seen."""
_FORM = b"m5ws again 1"
_ABSENT = "absent"
_PASSING = frozenset(("OLDPWD", "SHLVL", "_"))
_NEVER = frozenset((".git", ".m5ws"))
_MOST = 10_000
"""So many files below one path are looked through in some tens of milliseconds."""


class Unclear(Exception):
    """Below this path is more than a note is for."""


def given(
    home: str, arguments: "Sequence[str]", said: "Callable[[], Iterable[bytes] | None]"
) -> tuple[bytes, bytes] | None:
    """Return what was printed before, on stdout and stderr; None if it is not known to be the answer now.

    `home` is where the note is; `said` waits for what source control says of the working tree.
    """
    note = _read(home)
    if note is None:
        return None
    sure, asked, told, out, err, seen = note
    try:
        if sure != b"1" or asked != _digest([_asked(arguments)]):
            return None
        if not all(look(witness)[0] == text for witness, text in seen.items() if witness[0] != BELOW):
            return None
        # What may take long comes last: after an edit it is git that knows.
        if (glance := said()) is None or _digest(glance) != told:
            return None
        same = all(look(witness)[0] == text for witness, text in seen.items() if witness[0] == BELOW)
    except (OSError, Unclear):
        return None
    return (out, err) if same else None


def before(home: str) -> dict[Witness, bytes]:
    """Return what is to be seen now of all that is noted, as far as that can be told."""
    note = _read(home)
    seen = dict[Witness, bytes]()
    for witness in note[-1] if note is not None else ():
        try:
            seen[witness] = look(witness)[0]
        except (OSError, Unclear):
            continue
    return seen


def keep(
    home: str,
    arguments: "Sequence[str]",
    said: "Iterable[bytes]",
    out: bytes,
    err: bytes,
    seen: dict[Witness, bytes],
    *,
    sure: bool,
) -> None:
    """Note an answer with what it rests on, in place of the one before. Raises OSError."""
    fields = [b"1" if sure else b"0", _digest([_asked(arguments)]), _digest(said), out, err]
    for (kind, path), found in seen.items():
        fields += [kind.encode(), os.fsencode(path), found]
    content = b"\0".join(fields)
    # Two commands at once may write over each other: then no seal fits, and there is no note.
    temporary = os.path.join(home, f"{NAME}.new")
    with open(temporary, "wb") as note:
        note.write(b"\0".join((_FORM, _digest([content]), content)))
    os.replace(temporary, os.path.join(home, NAME))


def look(witness: Witness) -> tuple[bytes, int]:
    """Return what is to be seen of a path now, and when it last changed (nanoseconds; 0 where that does not matter).

    Raises OSError, and Unclear where too much lies below it.
    """
    kind, path = witness
    if kind == BELOW:
        return _below(path)
    if kind == FILE:
        text, changed_ns, _ = _file(path)
        return os.fsencode(text), changed_ns
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return _ABSENT.encode(), 0
    if kind == OBJECT:
        return f"{stat.S_IFMT(found.st_mode)} {found.st_size}".encode(), 0
    if stat.S_ISLNK(found.st_mode):
        text, changed_ns, _ = _file(path)
        return os.fsencode(text), changed_ns
    return f"{stat.S_IFMT(found.st_mode)} {found.st_ino} {found.st_dev}".encode(), 0


def _read(home: str) -> Note | None:
    try:
        with open(os.path.join(home, NAME), "rb") as note:
            form, seal, content = note.read().split(b"\0", 2)
        if form != _FORM or seal != _digest([content]):
            return None
        sure, asked, told, out, err, *rest = content.split(b"\0")
        threes = zip(*[iter(rest)] * 3, strict=True)
        return sure, asked, told, out, err, {(kind.decode(), os.fsdecode(path)): text for kind, path, text in threes}
    except (OSError, ValueError):
        return None


def _file(path: str) -> tuple[str, int, bool]:
    """Return the stamps of a path and of what a link leads to, when that changed, and whether it is a folder."""
    try:
        own = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return _ABSENT, 0, False
    text, changed_ns = _stamp(own), max(own.st_mtime_ns, own.st_ctime_ns)
    if not stat.S_ISLNK(own.st_mode):
        return text, changed_ns, stat.S_ISDIR(own.st_mode)
    text = f"{text} {os.path.realpath(path)}"
    try:
        end = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return f"{text} {_ABSENT}", changed_ns, False
    return f"{text} {_stamp(end)}", max(changed_ns, end.st_mtime_ns, end.st_ctime_ns), stat.S_ISDIR(end.st_mode)


def _stamp(found: os.stat_result) -> str:
    return f"{found.st_mode} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino} {found.st_dev}"


def _below(path: str) -> tuple[bytes, int]:
    hasher, newest_ns, left, count = blake3.blake3(), 0, [path], 0
    while left:
        here = left.pop()
        text, changed_ns, folder = _file(here)
        hasher.update(os.fsencode(f"{here}\0{text}\0"))
        newest_ns = max(newest_ns, changed_ns)
        if folder:
            left += [os.path.join(here, name) for name in sorted(os.listdir(here)) if name not in _NEVER]
        count += 1
        if count + len(left) > _MOST:
            raise Unclear(path)
    return hasher.hexdigest().encode(), newest_ns


def _asked(arguments: "Sequence[str]") -> bytes:
    """Return who asks for what: the arguments, the place, the interpreter, what is installed, all variables."""
    installed = [(path, os.stat(path).st_mtime_ns if os.path.exists(path) else 0) for path in sys.path]
    variables = sorted((name, value) for name, value in os.environ.items() if name not in _PASSING)
    interpreter = (sys.executable, sys.version, os.uname().release, installed)
    return repr(([*arguments], os.getcwd(), interpreter, variables)).encode("utf-8", "surrogatepass")


def _digest(parts: "Iterable[bytes]") -> bytes:
    hasher = blake3.blake3()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest().encode()
