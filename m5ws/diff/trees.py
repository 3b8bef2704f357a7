"""Comparison of two trees: the paths that differ, and a patch that `git apply` accepts.

Contents are compared by digest. A file's bytes are read only if they differ and are shown.
"""

import difflib
import io
from collections.abc import Iterator

import msgspec

from m5ws.records.base import Digest
from m5ws.records.tree import Entry
from m5ws.repository.files import trees
from m5ws.repository.repository import Repository

_SHOWN_BYTES = 512 * 1024
_MODES = {"file": "100644", "exec": "100755", "link": "120000"}


class FilePair(msgspec.Struct, frozen=True, kw_only=True):
    """One path whose file differs. `old` is None for an added file, `new` for a removed file."""

    path: bytes
    old: Entry | None
    new: Entry | None

    @property
    def name(self) -> str:
        return self.path.decode("utf-8", "backslashreplace")


def different(repo: Repository, old: Digest | None, new: Digest | None) -> list[FilePair]:
    """Return the paths that differ between two trees, in path order. None is an empty tree."""
    if old == new:
        return []
    before, after = _entries(repo, old), _entries(repo, new)
    pairs = (FilePair(path=path, old=before.get(path), new=after.get(path)) for path in sorted(before | after))
    return [pair for pair in pairs if _identity(pair.old) != _identity(pair.new)]


def short(entry: Entry | None) -> str | None:
    """Return a short form of a file's content for people, unique in practice."""
    if entry is None:
        return None
    if entry.link is not None:
        return f"link to {entry.link.decode('utf-8', 'backslashreplace')}"
    return f"{entry.digest[:16]}{', executable' if entry.mode == 'exec' else ''}"


def patch(repo: Repository, pair: FilePair) -> str:
    """Return one file's difference as git writes it. A binary or very large file is noted, not shown."""
    if pair.old is not None and pair.new is not None and (pair.old.mode == "link") != (pair.new.mode == "link"):
        # git has no patch that turns a file into a link: the file is removed, and the link added.
        removed, added = (msgspec.structs.replace(pair, new=None), msgspec.structs.replace(pair, old=None))
        return patch(repo, removed) + patch(repo, added)
    sides = [side for side in (pair.old, pair.new) if side is not None]
    head = "".join(f"{line}\n" for line in _head(pair))
    if len(sides) == 2 and sides[0].digest == sides[1].digest and sides[0].link == sides[1].link:
        return head
    if any(side.size_bytes > _SHOWN_BYTES for side in sides):
        return f"{head}too large to show: {_sizes(pair)}\n"
    old, new = (_text(repo, side) for side in (pair.old, pair.new))
    if old is None or new is None:
        return f"{head}binary: {_sizes(pair)}\n"
    before = _quoted(b"a/" + pair.path) if pair.old else "/dev/null"
    after = _quoted(b"b/" + pair.path) if pair.new else "/dev/null"
    return head + "".join(_hunks(old, new, before, after))


def _entries(repo: Repository, digest: Digest | None) -> dict[bytes, Entry]:
    return {} if digest is None else {entry.path: entry for entry in trees.load(repo.objects, digest).entries}


def _identity(entry: Entry | None) -> object:
    """Return the compared part of an entry: content and mode, without the place of its bytes in the store."""
    return entry and (entry.digest, entry.mode, entry.link)


def _head(pair: FilePair) -> Iterator[str]:
    yield f"diff --git {_quoted(b'a/' + pair.path)} {_quoted(b'b/' + pair.path)}"
    if pair.old is None and pair.new is not None:
        yield f"new file mode {_MODES[pair.new.mode]}"
    elif pair.new is None and pair.old is not None:
        yield f"deleted file mode {_MODES[pair.old.mode]}"
    elif pair.old is not None and pair.new is not None and pair.old.mode != pair.new.mode:
        yield f"old mode {_MODES[pair.old.mode]}"
        yield f"new mode {_MODES[pair.new.mode]}"


def _sizes(pair: FilePair) -> str:
    sizes = [f"{side.size_bytes} bytes" if side is not None else "absent" for side in (pair.old, pair.new)]
    return " → ".join(sizes)


def _text(repo: Repository, entry: Entry | None) -> str | None:
    """Return a file as text, empty if it is absent, None if it is not text."""
    if entry is None:
        return ""
    data = trees.read_file(repo.objects, entry)
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _hunks(old: str, new: str, before: str, after: str) -> Iterator[str]:
    # Lines end at "\n" only: str.splitlines also splits at form feeds and others, which a patch must keep.
    a, b = (list(io.StringIO(text, newline="\n")) for text in (old, new))
    for line in difflib.unified_diff(a, b, before, after):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _quoted(path: bytes) -> str:
    """Return a path as git writes it: in C quotes if it has control characters, quotes or bytes beyond ASCII."""
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in path):
        return path.decode("ascii")
    escaped = (
        f"\\{chr(byte)}" if byte in b'"\\' else chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}" for byte in path
    )
    return f'"{"".join(escaped)}"'
