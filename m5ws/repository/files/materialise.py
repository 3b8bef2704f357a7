"""Trees to files: a fresh directory that holds exactly what the trees name, every byte verified.

Nothing is ever written outside the target, whatever a tree says: its entries are checked, folders and files are
created exclusively before any link exists, and links are made last. Packs are read, not files: 100,000 small files are
about a thousand reads. Memory is bounded by _BUDGET_BYTES and one chunk, whatever is written.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from m5ws.errors import M5Error, UsageError
from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.records.tree import Entry, Slice, Tree, path_text
from m5ws.repository.concurrency import Job, fly
from m5ws.repository.files import verified_copy
from m5ws.repository.files.locations import PackLocations
from m5ws.repository.files.trees import read_elsewhere
from m5ws.repository.files.validation import check_claims, check_paths, is_small
from m5ws.repository.objects import Objects, key
from m5ws.store.interface import OnDisk

_THREADS = 16
"""More than there are processors: from a store that is far away, most of them wait."""
_BUDGET_BYTES = 512 * 2**20


class NotWritten(M5Error):
    """A file system did not take what a tree says."""

    hint = "What is there is not whole: remove it. Use a folder with room, on a file system that tells a from A."


def materialise(
    objects: Objects,
    locations: PackLocations,
    trees: Iterable[Tree],
    target: Path,
    progress: Progress | None = None,
    read_only: bool = True,
) -> None:
    """Write `trees`, whose paths are disjoint, to `target`, which must be absent or empty.

    Files are 0444/0555 when `read_only`. Raises UsageError for another target, CorruptObject on a damaged object or
    tree, NotWritten; what was written until then is left for inspection, never used.
    """
    entries = tuple(entry for tree in trees for entry in tree.entries)
    check_paths(entries, "to materialise")
    check_claims(entries, "to materialise")
    try:
        _prepare(target)
        _fill(_Writer(objects, locations, target, read_only), entries, target, progress)
    except OSError as error:
        raise NotWritten(f"{target} could not be filled: {error}") from error


def _fill(writer: "_Writer", entries: tuple[Entry, ...], target: Path, progress: Progress | None) -> None:
    _make_folders(target, entries)
    total = sum(entry.size_bytes for entry in entries)
    done = 0
    for size in fly(writer.jobs(entries), _THREADS, _BUDGET_BYTES):
        done += size
        if progress:
            progress("materialising", done, total)
    for entry in entries:
        if entry.link is not None:
            os.symlink(path_text(entry.link), target / path_text(entry.path))


def _prepare(target: Path) -> None:
    if os.path.lexists(target) and not target.is_dir():
        raise UsageError(f"{target} is not a folder", hint="Name a folder that does not exist yet.")
    target.mkdir(parents=True, exist_ok=True)
    if next(iter(target.iterdir()), None) is not None:
        raise UsageError(f"{target} is not empty", hint="Name a folder that does not exist yet.")


def _make_folders(target: Path, entries: tuple[Entry, ...]) -> None:
    """Make each folder once, outer ones first; no more than one path's folders are in memory."""
    root, made = os.fsencode(target) + b"/", list[bytes]()
    for folder in sorted({os.path.dirname(entry.path) for entry in entries} - {b""}, key=_with_zeros):
        names = folder.split(b"/")
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(made, names, strict=False)))
        for depth in range(same, len(names)):
            # Another file system may take two names for one folder: it is there then, and is no link yet.
            with suppress(FileExistsError):
                os.mkdir(root + b"/".join(names[: depth + 1]))
        made = names


def _with_zeros(path: bytes) -> bytes:
    """Return a path in whose order all that lies below a folder comes right after it."""
    return path.replace(b"/", b"\0")


class _Writer:
    """Makes the files of a target: one job a pack, and one a chunk, so that a large file is read in parallel."""

    def __init__(self, objects: Objects, locations: PackLocations, target: Path, read_only: bool) -> None:
        self._objects = objects
        self._locations = locations
        self._on_disk = objects.store if isinstance(objects.store, OnDisk) else None
        self._root = os.fspath(target) + "/"
        self._write_bits = 0o222 if read_only else 0

    def jobs(self, entries: tuple[Entry, ...]) -> Iterator[Job[int]]:
        """Yield all jobs, large files first; each returns how many bytes it has written."""
        packs: dict[Digest, list[Entry]] = {}
        for entry in entries:
            if entry.link is not None:
                continue
            if is_small(self._objects, entry) or (len(entry.parts) == 1 and entry.parts[0].object != entry.digest):
                packs.setdefault(entry.parts[0].object, []).append(entry)
            else:
                yield from self._chunks(entry)
        for pack, members in packs.items():
            size = max(entry.parts[0].offset + entry.size_bytes for entry in members)
            yield size, lambda pack=pack, members=members: self._pack(pack, members)  # type: ignore[misc]

    def _chunks(self, entry: Entry) -> Iterator[Job[int]]:
        if not entry.parts:
            self._whole(entry, memoryview(b""))
            return
        file = _File(self._create(entry), self._mode(entry), len(entry.parts))
        position = 0
        for part in entry.parts:
            yield part.size_bytes, lambda part=part, position=position: self._chunk(file, part, position)  # type: ignore[misc]
            position += part.size_bytes

    def _chunk(self, file: "_File", part: Slice, position: int) -> int:
        try:
            if not self._copied(file, part, position):
                self._poured(file, part, position)
        finally:
            file.leave()
        return part.size_bytes

    def _poured(self, file: "_File", part: Slice, position: int) -> None:
        if part.object != part.digest:
            return verified_copy.write(file.descriptor, self._objects.read(part), position)
        self._objects.pour(
            part.object,
            part.size_bytes,
            lambda offset, piece: verified_copy.write(file.descriptor, piece, position + offset),
        )
        return None

    def _copied(self, file: "_File", part: Slice, position: int) -> bool:
        """Copy a chunk that lies on this machine's disk; one that is damaged there is left to `Objects.read`."""
        if self._on_disk is None or part.object != part.digest:
            return False
        source = self._on_disk.descriptor(key(part.object))
        if source is None:
            return False
        try:
            return verified_copy.copy(self._objects, source, part, file.descriptor, position)
        except OSError:
            # The disk cannot read it; if it is the target that cannot be written, the next write says so.
            return False
        finally:
            os.close(source)

    def _pack(self, pack: Digest, entries: list[Entry]) -> int:
        parts = [entry.parts[0] for entry in entries]
        try:
            pieces = self._objects.pieces(pack, parts)
        except (M5Error, OSError) as trouble:
            pieces = read_elsewhere(self._objects, self._locations, parts, trouble)
        for entry, piece in zip(entries, pieces, strict=True):
            self._whole(entry, piece)
        return sum(entry.size_bytes for entry in entries)

    def _whole(self, entry: Entry, data: memoryview) -> None:
        descriptor = self._create(entry)
        try:
            while data:
                data = data[os.write(descriptor, data) :]
            _set_mode(descriptor, self._mode(entry))
        finally:
            os.close(descriptor)

    def _create(self, entry: Entry) -> int:
        location = self._root + path_text(entry.path)
        return os.open(location, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, self._mode(entry))

    def _mode(self, entry: Entry) -> int:
        return (0o755 if entry.mode == "exec" else 0o644) & ~self._write_bits


class _File:
    """A large file that several jobs write to; the last one that leaves gives it its mode and closes it."""

    def __init__(self, descriptor: int, mode: int, jobs: int) -> None:
        self.descriptor = descriptor
        self._mode = mode
        self._jobs = jobs
        self._lock = threading.Lock()

    def leave(self) -> None:
        with self._lock:
            self._jobs -= 1
            last = not self._jobs
        if last:
            _set_mode(self.descriptor, self._mode)
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        # Jobs that were never begun, because another has failed, do not leave.
        if self.descriptor >= 0:
            with suppress(OSError):
                os.close(self.descriptor)


def _set_mode(descriptor: int, mode: int) -> None:
    """Give back what the umask took; most umasks take nothing, and to set a mode costs as much as to make the file."""
    if os.fstat(descriptor).st_mode & 0o777 != mode:
        os.fchmod(descriptor, mode)
