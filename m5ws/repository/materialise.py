"""Trees to files: a fresh directory that holds exactly what the trees name, every byte verified.

Nothing is ever written outside the target, whatever a tree says: its paths are checked, files are created
exclusively before any link exists, and links are made last.
"""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from m5ws.errors import CorruptObject, UsageError
from m5ws.ports import Progress
from m5ws.records import Digest, Entry, Tree, path_text
from m5ws.repository.objects import Objects
from m5ws.repository.trees import check_paths

_THREADS = 4


def materialise(
    objects: Objects, trees: Iterable[Tree], target: Path, progress: Progress | None = None, read_only: bool = True
) -> None:
    """Write `trees`, whose paths are disjoint, to `target`, which must be absent or empty.

    Files are 0444/0555 when `read_only`. Raises CorruptObject on a damaged object or tree; what was written
    until then is left for inspection, never used.
    """
    entries = tuple(entry for tree in trees for entry in tree.entries)
    check_paths(entries, "to materialise")
    _prepare(target, entries)
    total = sum(entry.size_bytes for entry in entries)
    done = 0
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="m5ws-materialise") as pool:
        for size in _bounded(pool, objects, target, entries, read_only):
            done += size
            if progress:
                progress("materialising", done, total)
    for entry in entries:
        if entry.link is not None:
            os.symlink(path_text(entry.link), target / path_text(entry.path))


def _prepare(target: Path, entries: tuple[Entry, ...]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    if next(iter(target.iterdir()), None) is not None:
        raise UsageError(f"{target} is not empty", hint="Name a folder that does not exist yet.")
    for folder in sorted({os.path.dirname(entry.path) for entry in entries} - {b""}):
        (target / path_text(folder)).mkdir(parents=True, exist_ok=True)


def _bounded(
    pool: ThreadPoolExecutor, objects: Objects, target: Path, entries: tuple[Entry, ...], read_only: bool
) -> Iterator[int]:
    """Yield the bytes of each finished job, with a bounded number of jobs (packs or files) in flight."""
    pending: list[Future[int]] = []
    for pack, members in _jobs(entries):
        pending.append(pool.submit(_write, objects, target, pack, members, read_only))
        if len(pending) > 2 * _THREADS:
            yield pending.pop(0).result()
    for future in pending:
        yield future.result()


def _jobs(entries: tuple[Entry, ...]) -> Iterator[tuple[Digest | None, list[Entry]]]:
    """Yield (pack, the files in it) for packed files, so that a pack is read once, and (None, [file]) for others."""
    packs: dict[Digest, list[Entry]] = {}
    for entry in entries:
        if entry.link is not None:
            continue
        if len(entry.parts) == 1 and entry.size_bytes < (1 << 20):
            packs.setdefault(entry.parts[0].object, []).append(entry)
        else:
            yield None, [entry]
    yield from packs.items()


def _write(objects: Objects, target: Path, pack: Digest | None, entries: list[Entry], read_only: bool) -> int:
    if pack is None:
        (entry,) = entries
        _write_file(target, entry, (objects.read(part) for part in entry.parts), read_only)
        return entry.size_bytes
    data = memoryview(objects.get(pack))
    for entry in entries:
        part = entry.parts[0]
        piece = data[part.offset : part.offset + part.size_bytes]
        if objects.digest(piece) != part.digest:
            raise CorruptObject(f"file {entry.name!r} is not where its tree says, in object {pack}")
        _write_file(target, entry, (piece,), read_only)
    return sum(entry.size_bytes for entry in entries)


def _write_file(target: Path, entry: Entry, pieces: Iterable[bytes | memoryview], read_only: bool) -> None:
    mode = 0o755 if entry.mode == "exec" else 0o644
    location = target / path_text(entry.path)
    descriptor = os.open(location, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    size = 0
    try:
        for piece in pieces:
            view = memoryview(piece)
            size += view.nbytes
            while view:
                view = view[os.write(descriptor, view) :]
        os.fchmod(descriptor, mode & ~0o222 if read_only else mode)
    finally:
        os.close(descriptor)
    if size != entry.size_bytes:
        raise CorruptObject(f"file {entry.name!r} has {size} bytes instead of {entry.size_bytes}")
