"""Validation of a tree's entries, from any writer: paths stay below their target, and fields agree.

Refused are paths that a file system could map to a special path: `.git` and `.m5ws` in any spelling, because tools
trust and run their content. The rules for HFS+ and NTFS are git's (CVE-2014-9390, CVE-2019-1352). Names that differ in
case alone are two files here; on a file system that ignores case, creating the second file fails.
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
"""Code points that HFS+ ignores in names."""


def check(objects: Objects, entries: Sequence[Entry], what: str) -> None:
    """Raise CorruptObject if a stored tree breaks a rule of trees. `what` names it in the error."""
    check_paths(entries, what)
    check_claims([entry for entry in entries if not is_small(objects, entry)], what)
    _check_parts(objects, entries, what)


def check_paths(files: Iterable[Entry | SourceFile], what: str) -> None:
    """Raise CorruptObject if a tree could write outside its target, or twice to one path."""
    paths = [file.path for file in files]
    for path in paths:
        if is_forbidden(path):
            raise CorruptObject(f"tree {what} has a forbidden path: {_shown(path)}")
    # With zero bytes instead of slashes, the content of a folder sorts directly after the folder.
    for earlier, later in pairwise(sorted(path.replace(b"/", b"\0") for path in paths)):
        if not later.startswith(earlier):
            continue
        shown = _shown(earlier.replace(b"\0", b"/"))
        if later == earlier:
            raise CorruptObject(f"tree {what} has the path {shown} twice")
        if not later[len(earlier)]:
            raise CorruptObject(f"tree {what} has {shown} both as a file and as a folder")


def is_forbidden(path: bytes) -> bool:
    """Return True for a path that no tree may have."""
    return bool(
        _FORBIDDEN.search(path)
        or len(path) > PATH_BYTES
        or path.count(b"/") > DEPTH
        or (_SUSPECT.search(path) and _reserved(path))
    )


def check_claims(entries: Iterable[Entry], what: str) -> None:
    """Raise CorruptObject for entries with a kind, link and sizes that contradict each other."""
    for entry in entries:
        if entry.mode == "link" or entry.link is not None:
            _check_link(entry, what)
            continue
        size = sum([part.size_bytes for part in entry.parts])
        if size != entry.size_bytes:
            raise CorruptObject(f"tree {what}: {_shown(entry.path)} has {size} bytes instead of {entry.size_bytes}")


def _check_parts(objects: Objects, entries: Iterable[Entry], what: str) -> None:
    """Raise CorruptObject for files whose digest does not match their parts: trees are compared by these digests.

    A small file has the digest of its bytes, which are verified when they are read.
    """
    for entry in entries:
        if is_small(objects, entry):
            if entry.parts:
                raise CorruptObject(f"tree {what}: {_shown(entry.path)} is small, but split into chunks")
            continue
        if entry.link is not None:
            digest = objects.digest(entry.link)
        else:
            digest = joint_digest(objects, [part.digest for part in entry.parts])
        if entry.digest != digest:
            raise CorruptObject(f"tree {what}: {_shown(entry.path)} does not have the digest of its content, {digest}")


def is_small(objects: Objects, entry: Entry) -> bool:
    """Return True if an entry is a small file, which is in a pack."""
    return entry.mode != "link" and entry.link is None and 0 < entry.size_bytes < objects.format.small_bytes


def joint_digest(objects: Objects, chunks: Sequence[Digest]) -> Digest:
    """Return a file's digest from its chunks: the only chunk's digest, or the digest of all, joined as text."""
    return chunks[0] if len(chunks) == 1 else objects.digest("".join(chunks).encode())


def _check_link(entry: Entry, what: str) -> None:
    link = entry.link
    if entry.mode != "link" or link is None or entry.parts:
        raise CorruptObject(f"tree {what}: {_shown(entry.path)} is both a link and a file")
    if not link or b"\0" in link or len(link) > PATH_BYTES or len(link) != entry.size_bytes:
        raise CorruptObject(f"tree {what}: the link {_shown(entry.path)} has an invalid target")


def _reserved(path: bytes) -> bool:
    # Servers of other systems treat a backslash as a slash, and a colon as the start of a stream's name.
    names = re.split(r"[/\\]", path.decode("utf-8", "surrogateescape").translate(_IGNORED))
    return any(name.partition(":")[0].rstrip(" .").casefold() in _RESERVED for name in names)


def _shown(path: bytes) -> str:
    """Return a path for an error message, with a long path cut."""
    return repr(path_text(path[:100])) + (" …" if len(path) > 100 else "")
