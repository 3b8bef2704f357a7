"""What a tree's entries may say, whoever wrote them: paths that stay below their target, and claims that agree.

Refused are paths that a file system could take for another one: those of `.git` and `.m5ws` in any spelling (git's own
rules for HFS+ and NTFS: CVE-2014-9390, CVE-2019-1352), since what lies there is run or believed by tools. Names that
differ in case alone are two files here; where a file system thinks otherwise, the second one fails to be made.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from m5ws.errors import CorruptObject
from m5ws.records.base import Digest
from m5ws.records.tree import Entry, path_text
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.objects import Objects

PATH_BYTES = 4095
DEPTH = 255
_FORBIDDEN = re.compile(rb"(?:\A|/)\.{0,2}(?:/|\Z)|\0|[^/]{256}")
_SUSPECT = re.compile(rb"(?i:git|m5ws)|\xe2[\x80\x81]|\xef\xbb\xbf|\xc5\xbf")
_RESERVED = frozenset((".git", ".m5ws", "git~1", "m5ws~1"))
_IGNORED = dict.fromkeys((*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF))
"""Code points that HFS+ passes over in names."""


def check(objects: Objects, entries: Sequence[Entry], what: str) -> None:
    """Refuse a tree as it is stored, called `what`, that says what no tree may say. Raises CorruptObject."""
    check_paths(entries, what)
    check_claims([entry for entry in entries if not is_small(objects, entry)], what)
    _check_parts(objects, entries, what)


def check_paths(files: Iterable[Entry | SourceFile], what: str) -> None:
    """Refuse a tree that could write outside its target, or twice to one place. Raises CorruptObject."""
    paths = [file.path for file in files]
    for path in paths:
        if (
            _FORBIDDEN.search(path)
            or len(path) > PATH_BYTES
            or path.count(b"/") > DEPTH
            or (_SUSPECT.search(path) and _reserved(path))
        ):
            raise CorruptObject(f"tree {what} has a path that is not allowed: {_shown(path)}")
    # With zero bytes for slashes, what lies below a path comes right after it.
    for earlier, later in pairwise(sorted(path.replace(b"/", b"\0") for path in paths)):
        if not later.startswith(earlier):
            continue
        shown = _shown(earlier.replace(b"\0", b"/"))
        if later == earlier:
            raise CorruptObject(f"tree {what} has the path {shown} twice")
        if not later[len(earlier)]:
            raise CorruptObject(f"tree {what} has {shown} both as a file and as a folder")


def check_claims(entries: Iterable[Entry], what: str) -> None:
    """Refuse entries whose kind, link and sizes contradict each other. Raises CorruptObject."""
    for entry in entries:
        if entry.mode == "link" or entry.link is not None:
            _check_link(entry, what)
            continue
        size = sum([part.size_bytes for part in entry.parts])
        if size != entry.size_bytes:
            raise CorruptObject(f"tree {what}: {_shown(entry.path)} has {size} bytes instead of {entry.size_bytes}")


def _check_parts(objects: Objects, entries: Iterable[Entry], what: str) -> None:
    """Refuse files that are not named by what they hold: trees are compared by these names. Raises CorruptObject.

    A small file is named by its bytes, which are held against its name when they are read.
    """
    for entry in entries:
        if is_small(objects, entry):
            if entry.parts:
                raise CorruptObject(f"tree {what}: {_shown(entry.path)} is small, and in chunks")
            continue
        if entry.link is not None:
            digest = objects.digest(entry.link)
        else:
            digest = joint_digest(objects, [part.digest for part in entry.parts])
        if entry.digest != digest:
            raise CorruptObject(f"tree {what}: {_shown(entry.path)} is not named by what it holds, {digest}")


def is_small(objects: Objects, entry: Entry) -> bool:
    """Return whether an entry is of a file whose place a packing says."""
    return entry.mode != "link" and entry.link is None and 0 < entry.size_bytes < objects.format.small_bytes


def joint_digest(objects: Objects, chunks: Sequence[Digest]) -> Digest:
    """Return a file's digest from its chunks': the chunk's own, or the digest of all, joined as text."""
    return chunks[0] if len(chunks) == 1 else objects.digest("".join(chunks).encode())


def _check_link(entry: Entry, what: str) -> None:
    link = entry.link
    if entry.mode != "link" or link is None or entry.parts:
        raise CorruptObject(f"tree {what}: {_shown(entry.path)} is both a link and a file")
    if not link or b"\0" in link or len(link) > PATH_BYTES or len(link) != entry.size_bytes:
        raise CorruptObject(f"tree {what}: the link {_shown(entry.path)} has a target that no link can have")


def _reserved(path: bytes) -> bool:
    # Servers of other systems take a backslash for a slash, and a colon for the beginning of a stream's name.
    names = re.split(r"[/\\]", path.decode("utf-8", "surrogateescape").translate(_IGNORED))
    return any(name.partition(":")[0].rstrip(" .").casefold() in _RESERVED for name in names)


def _shown(path: bytes) -> str:
    """Return a path as an error shows it: the beginning of a long one."""
    return repr(path_text(path[:100])) + (" …" if len(path) > 100 else "")
