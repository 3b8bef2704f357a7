"""The answer of a `m5ws snapshot` that found nothing new, given again while all that it rests on is as it was.

The whole command notes what it looked at (`operations/repeat.py`): settings, files and folders with their stamps, the
store's objects, what git said, and who asked. A note is sure once all of it was the same before a command and after it;
then the same answer needs nothing else to be imported. Anything else, a note that cannot be read too, is answered by
the whole command.
"""

import os
import stat
import sys

from m5ws.search import ABSENT, Search, Unclear, stamps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from m5ws.inquiry import Inquiry

NAME = "again"
FILE, OBJECT, FOLDER, BELOW, BUCKET = "file", "object", "folder", "below", "bucket"
"""What is asked of a path: its stamps, its length as an object, which folder it is, the stamps of all below it; and of
an S3 server, an `inquiry.Inquiry` as text."""

Witness = tuple[str, str]
"""What is asked, and of which path."""
Sight = tuple[bytes, "Iterable[int]"]
"""What is to be seen, and when that changed (nanoseconds; not told where it does not matter)."""
_FORM = b"m5ws again 1"
_PASSING = frozenset(("OLDPWD", "SHLVL", "_"))
MOST_FILES = 100_000
"""To look through so many takes a third of a second, in which what a command finds of them is not much further."""


class Note:
    """An answer, with all that it rests on.

    `sure`: it may be given again. `asked` is who asked, `told` what source control said, `out` and `err` what was
    printed, and `seen` what was to be seen.
    """

    def __init__(
        self, *, sure: bool, asked: bytes, told: bytes, out: bytes, err: bytes, seen: "Mapping[Witness, bytes]"
    ) -> None:
        self.sure, self.asked, self.told, self.out, self.err, self.seen = sure, asked, told, out, err, seen

    def content(self) -> bytes:
        """Return it as bytes, as `read` takes it."""
        fields = [b"1" if self.sure else b"0", self.asked, self.told, self.out, self.err]
        for (kind, path), text in self.seen.items():
            fields += [kind.encode(), os.fsencode(path), text]
        return b"\0".join(fields)

    @classmethod
    def read(cls, content: bytes) -> "Note":
        """Read back what `content` made. Raises ValueError."""
        sure, asked, told, out, err, *rest = content.split(b"\0")
        threes = zip(*[iter(rest)] * 3, strict=True)
        seen = {(kind.decode(), os.fsdecode(path)): text for kind, path, text in threes}
        return cls(sure=sure == b"1", asked=asked, told=told, out=out, err=err, seen=seen)


class Again:
    """The note in the folder `home`, and the look that takes longest, begun at once."""

    def __init__(self, home: str) -> None:
        self._home = home
        # Whether it is whole is known last: that takes an import, and to look at other paths does no harm.
        self._seal, self._note = _note(home)
        self._search: Search | None = None
        try:
            if self._note is not None and self._note.sure:
                self._search = Search(_below(self._note.seen))
        except (OSError, Unclear, ValueError):
            self._note = None

    def answer(self, arguments: "Sequence[str]", said: "Callable[[], Iterable[bytes] | None]") -> "Note | None":
        """Return what was answered before; None if it is not known to be the answer now.

        `said` waits for what source control says of the working tree.
        """
        note, search = self._note, self._search
        try:
            if note is None or search is None or self._seal != _digest([note.content()]):
                return None
            same = note.asked == _digest([_asked(arguments)]) and self._is_as_seen(note, search, said)
        except (OSError, Unclear):
            return None
        finally:
            if search is not None:
                search.stop()
        if same:
            _seen.pop(self._home, None)
        return note if same else None

    def _is_as_seen(self, note: Note, search: "Search", said: "Callable[[], Iterable[bytes] | None]") -> bool:
        seen = _seen[self._home] = dict[Witness, bytes]()
        if not _look_here(note, seen):
            return False
        inquiries = _inquiries(note.seen)
        try:
            # What may take long comes last: after an edit it is git that knows.
            if (glance := said()) is None or _digest(glance) != note.told:
                return False
            # A server's list is read while `find` works.
            seen.update(_answers(inquiries))
        finally:
            _stop(inquiries)
        below = _digest(search.end()[0])
        seen.update((witness, below) for witness in note.seen if witness[0] == BELOW)
        return seen == note.seen


_seen: dict[str, dict[Witness, bytes]] = {}
"""By the folder of a note, what this process saw before it read anything."""


def before(home: str, arguments: "Sequence[str]") -> dict[Witness, bytes]:
    """Return what was to be seen of all that is noted before anything was read, as far as that can be told.

    Where something was seen to have moved, the answer is likely to be another: the rest is not looked at. No server is
    asked that was another's: it may be none of those that this command would sign a request for.
    """
    seal, note = _note(home)
    seen = _seen.pop(home, None)
    if seen is not None or note is None or seal != _digest([note.content()]):
        return seen or {}
    seen = {}
    try:
        remote = any(kind == BUCKET for kind, _ in note.seen)
        if not (remote and note.asked != _digest([_asked(arguments)])) and _look_here(note, seen):
            seen = look(note.seen)[0]
    except (OSError, Unclear):
        return {}
    return seen


def _look_here(note: Note, seen: dict[Witness, bytes]) -> bool:
    """Look at what is to be seen at once, until something is not as noted; return whether all is."""
    for witness, text in note.seen.items():
        if witness[0] not in (BELOW, BUCKET):
            seen[witness] = _look(witness)[0]
            if seen[witness] != text:
                return False
    return True


def keep(
    home: str,
    arguments: "Sequence[str]",
    said: "Iterable[bytes]",
    out: bytes,
    err: bytes,
    seen: "Mapping[Witness, bytes]",
    *,
    sure: bool,
) -> None:
    """Note an answer with what it rests on, in place of the one before. Raises OSError."""
    asked = _digest([_asked(arguments)])
    content = Note(sure=sure, asked=asked, told=_digest(said), out=out, err=err, seen=seen).content()
    # Two commands at once may write over each other: then no seal fits, and there is no note.
    temporary = os.path.join(home, f"{NAME}.new")
    with open(temporary, "wb") as note:
        note.write(b"\0".join((_FORM, _digest([content]), content)))
    os.replace(temporary, os.path.join(home, NAME))


def look(witnesses: "Collection[Witness]") -> "tuple[dict[Witness, bytes], Iterable[int]]":
    """Return what is to be seen now, and when it changed (nanoseconds): what is below several paths, as of all of them.

    Raises OSError, and Unclear where too much lies below them, or there is nothing to look with.
    """
    inquiries = _inquiries(witnesses)
    try:
        search = Search(_below(witnesses))
        try:
            # A server that does not answer need not be waited for by `find`.
            answers = _answers(inquiries)
            found = {witness: _look(witness) for witness in witnesses if witness[0] not in (BELOW, BUCKET)}
            shown, changes_ns = search.end()
            below = _digest(shown), changes_ns
            found |= dict.fromkeys((witness for witness in witnesses if witness[0] == BELOW), below)
        finally:
            search.stop()
    finally:
        _stop(inquiries)
    seen = {witness: text for witness, (text, _) in found.items()} | answers
    return seen, (changed_ns for _, dates in found.values() for changed_ns in dates)


def _inquiries(witnesses: "Iterable[Witness]") -> "dict[Witness, Inquiry]":
    """Begin to ask S3 servers what is asked of them. Raises OSError."""
    asked = [witness for witness in witnesses if witness[0] == BUCKET]
    if not asked:
        return {}
    from m5ws.inquiry import Inquiry

    inquiries = {witness: Inquiry.read(witness[1]) for witness in asked}
    try:
        for inquiry in inquiries.values():
            inquiry.begin()
    except OSError:
        _stop(inquiries)
        raise
    return inquiries


def _answers(inquiries: "Mapping[Witness, Inquiry]") -> dict[Witness, bytes]:
    """Wait for what servers say. Raises OSError."""
    return {witness: _digest(inquiry.end()) for witness, inquiry in inquiries.items()}


def _stop(inquiries: "Mapping[Witness, Inquiry]") -> None:
    """End what nobody has waited for."""
    for inquiry in inquiries.values():
        inquiry.stop()


def _look(witness: Witness) -> Sight:
    kind, path = witness
    if kind == FILE:
        text, changed_ns, _ = stamps(path)
        return os.fsencode(text), (changed_ns,)
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT.encode(), ()
    if kind == OBJECT:
        return f"{stat.S_IFMT(found.st_mode)} {found.st_size}".encode(), ()
    if stat.S_ISLNK(found.st_mode):
        text, changed_ns, _ = stamps(path)
        return os.fsencode(text), (changed_ns,)
    # It may hold other files than when it was noted; but that it was another one for a while is seen from its date.
    return f"{stat.S_IFMT(found.st_mode)} {found.st_ino} {found.st_dev}".encode(), (found.st_ctime_ns,)


def _below(witnesses: "Iterable[Witness]") -> list[str]:
    return [path for kind, path in witnesses if kind == BELOW]


def _note(home: str) -> tuple[bytes, Note | None]:
    """Return a note with its seal, which is still to be held against it; None if there is none."""
    try:
        with open(os.path.join(home, NAME), "rb", opener=_unwaited) as note:
            form, seal, content = note.read().split(b"\0", 2)
        return seal, Note.read(content) if form == _FORM else None
    except (OSError, ValueError):
        return b"", None


def _unwaited(path: str, flags: int) -> int:
    """Open a file, and one that somebody would have to write into first as well."""
    return os.open(path, flags | os.O_NONBLOCK)


def _asked(arguments: "Sequence[str]") -> bytes:
    """Return who asks for what: the arguments, the place, the interpreter, what is installed, all variables."""
    installed = [(path, os.stat(path).st_mtime_ns if os.path.exists(path) else 0) for path in sys.path]
    variables = sorted((name, value) for name, value in os.environ.items() if name not in _PASSING)
    interpreter = (sys.executable, sys.version, os.uname().release, installed)
    return repr(([*arguments], os.getcwd(), interpreter, variables)).encode("utf-8", "surrogatepass")


def _digest(parts: "Iterable[bytes]") -> bytes:
    # Not before it is needed: git and `find` work meanwhile.
    import blake3

    hasher = blake3.blake3()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest().encode()
