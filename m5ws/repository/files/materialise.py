"""Trees to files: a fresh directory with exactly the files of the trees, every byte verified.

Nothing is ever written outside the target, whatever a tree contains. Its entries are checked, folders and files are
created exclusively before any link, and links are created last. Packs are read whole, so 100,000 small files take about
a thousand reads.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from m5ws.errors import M5Error, UsageError
from m5ws.progress import Progress, report
from m5ws.records.base import Digest
from m5ws.records.tree import Entry, Slice, Tree, path_text
from m5ws.repository.concurrency import Job, bounded_map
from m5ws.repository.files import verified_copy
from m5ws.repository.files.validation import check_claims, check_paths, is_small
from m5ws.repository.objects import Objects, key
from m5ws.store.interface import FileBacked


class NotWritten(M5Error):
    """The file system cannot hold the files of a tree."""

    hint = "Remove incomplete files. Use a folder with free space, on a case-sensitive file system."


def materialise(
    objects: Objects, trees: Iterable[Tree], target: Path, progress: Progress | None = None, read_only: bool = True
) -> None:
    """Write `trees`, which have disjoint paths, to `target`, which must be missing or empty.

    Files are 0444/0555 if `read_only`. Raises UsageError for another target, CorruptObject for a damaged object or
    tree, and NotWritten, if possible before the first byte. After an error the incomplete files are left for
    inspection, and never used.
    """
    entries = tuple(entry for tree in trees for entry in tree.entries)
    check_paths(entries, "to materialise")
    check_claims(entries, "to materialise")
    try:
        _prepare(target)
        _check_space(entries, target)
        _fill(_Writer(objects, target, read_only), entries, target, progress)
    except OSError as error:
        raise NotWritten(f"cannot write all files to {target}: {error}") from error


def _fill(writer: "_Writer", entries: tuple[Entry, ...], target: Path, progress: Progress | None) -> None:
    # A file system that ignores case may map two names to one folder. No folder can be a link yet.
    for folder in sorted({os.path.dirname(entry.path) for entry in entries}):
        os.makedirs(os.path.join(os.fsencode(target), folder), exist_ok=True)
    total = sum(entry.size_bytes for entry in entries)
    done = 0
    for size in bounded_map(writer.jobs(entries)):
        done += size
        report(progress, "materialising", done, total)
    for entry in entries:
        if entry.link is not None:
            os.symlink(path_text(entry.link), target / path_text(entry.path))


def _prepare(target: Path) -> None:
    if os.path.lexists(target) and not target.is_dir():
        raise UsageError(f"{target} is not a folder", hint="Name a folder that does not exist yet.")
    target.mkdir(parents=True, exist_ok=True)
    if next(iter(target.iterdir()), None) is not None:
        raise UsageError(f"{target} is not empty", hint="Name a folder that does not exist yet.")


def _check_space(entries: tuple[Entry, ...], target: Path) -> None:
    """Raise NotWritten if the file system has too little free space or too few free inodes for all files."""
    free = os.statvfs(target)
    free_bytes, needed_bytes = free.f_bavail * free.f_frsize, sum(entry.size_bytes for entry in entries)
    if free.f_files and free.f_favail < len(entries):
        raise NotWritten(f"the files need {len(entries):,} inodes, and {target} has {free.f_favail:,}")
    if free_bytes < needed_bytes and not verified_copy.shares_blocks(target):
        raise NotWritten(f"the files need {needed_bytes:,} bytes, and {target} has {free_bytes:,}")


class _Writer:
    """Writes the files of a target: one job per pack, and one per chunk to read large files in parallel."""

    def __init__(self, objects: Objects, target: Path, read_only: bool) -> None:
        self._objects = objects
        self._on_disk = objects.store if isinstance(objects.store, FileBacked) else None
        self._root = os.fspath(target) + "/"
        self._write_bits = 0o222 if read_only else 0

    def jobs(self, entries: tuple[Entry, ...]) -> Iterator[Job[int]]:
        """Yield all jobs, large files first. Each job returns the number of bytes written."""
        packs: dict[Digest, list[Entry]] = {}
        for entry in entries:
            if entry.link is not None:
                continue
            if is_small(self._objects, entry):
                packs.setdefault(entry.parts[0].object, []).append(entry)
            else:
                yield from self._chunks(entry)
        for pack, members in packs.items():
            size = max(entry.parts[0].offset + entry.size_bytes for entry in members)
            yield size, partial(self._pack, pack, members)

    def _chunks(self, entry: Entry) -> Iterator[Job[int]]:
        if not entry.parts:
            self._whole(entry, memoryview(b""))
            return
        file = _File(self._create(entry), self._mode(entry), len(entry.parts))
        position = 0
        for part in entry.parts:
            yield part.size_bytes, partial(self._chunk, file, part, position)
            position += part.size_bytes

    def _chunk(self, file: "_File", part: Slice, position: int) -> int:
        try:
            if not self._copied(file, part, position):
                verified_copy.write(file.descriptor, self._objects.read(part), position)
        finally:
            file.leave()
        return part.size_bytes

    def _copied(self, file: "_File", part: Slice, position: int) -> bool:
        """Copy a chunk from this machine's disk. A damaged chunk is left to `Objects.read`."""
        if self._on_disk is None or part.object != part.digest:
            return False
        source = self._on_disk.descriptor(key(part.object))
        if source is None:
            return False
        try:
            return verified_copy.copy(self._objects, source, part, file.descriptor, position)
        except OSError:
            # The disk cannot read the chunk. If the target cannot be written instead, the next write raises an error.
            return False
        finally:
            os.close(source)

    def _pack(self, pack: Digest, entries: list[Entry]) -> int:
        parts = [entry.parts[0] for entry in entries]
        for entry, piece in zip(entries, self._objects.pieces(pack, parts), strict=True):
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
    """A large file written by several jobs. The last job sets its mode and closes it."""

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
        # After a failure of another job, jobs that never started do not call `leave`.
        if self.descriptor >= 0:
            with suppress(OSError):
                os.close(self.descriptor)


def _set_mode(descriptor: int, mode: int) -> None:
    """Restore mode bits removed by the umask.

    Checked first, because setting a mode costs as much as creating the file.
    """
    if os.fstat(descriptor).st_mode & 0o777 != mode:
        os.fchmod(descriptor, mode)
