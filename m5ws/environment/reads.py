"""The files and folders that a run read from places that no snapshot contains: their content, and its changes.

The digest of a file of at most 256 MiB is the digest that a tree of the store has of it. The digest of a larger file
is of its size and of 64 blocks of 1 MiB, from its begin to its end. The digest of a folder is of the names and sizes
in it.
"""

import os
import stat
from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from m5ws import secret_scan
from m5ws.records.ledger import NODE, Reads
from m5ws.records.reads import ReadList, ReadPath
from m5ws.records.verdict import Change
from m5ws.repository.files.validation import joint_digest
from m5ws.repository.ledger import ledger, summaries
from m5ws.repository.objects import Objects
from m5ws.repository.repository import Repository

WHOLE_BYTES = 256 * 2**20
BLOCK_BYTES = 2**20
BLOCKS = 64
PART = "read"
"""`Change.part` of these files."""


def measure(objects: Objects, path: str, began_ns: int | None = None) -> ReadPath | None:
    """Return a file or folder as it is now, None if it does not exist. `objects` has the format of digests.

    There is no digest of a file that cannot be read, that is likely to contain a secret, or whose path is not UTF-8;
    and none of a file that was written after `began_ns`, perhaps by the run, perhaps after it was read.
    """
    try:
        status = os.stat(path)
        name = os.fsencode(path).decode("utf-8", "backslashreplace")
        if stat.S_ISDIR(status.st_mode):
            size_bytes, digest = _folder(objects, path)
            return ReadPath(path=name, kind="folder", size_bytes=size_bytes, digest=digest)
    except OSError:
        return None
    read = ReadPath(path=name, size_bytes=status.st_size, sampled=status.st_size > WHOLE_BYTES)
    is_secret = secret_scan.kind_by_name(path) is not None or secret_scan.is_environment_file(path)
    is_written = began_ns is not None and status.st_mtime_ns > began_ns
    if name != path or is_secret or is_written or not stat.S_ISREG(status.st_mode):
        return read
    try:
        return msgspec.structs.replace(read, digest=_digest(objects, path, status.st_size))
    except OSError:
        return read


def _digest(objects: Objects, path: str, size_bytes: int) -> str:
    """Return the digest of a file's content, or of blocks of a large file. Raises OSError."""
    form = objects.format
    cut = form.file_chunk_bytes if size_bytes >= form.small_bytes else form.small_bytes
    with open(path, "rb") as file:
        if size_bytes <= WHOLE_BYTES:
            chunks = [*map(objects.digest, iter(partial(file.read, cut), b""))]
            return joint_digest(objects, chunks) if chunks else objects.digest(b"")
        hasher = objects.hasher()
        hasher.update(str(size_bytes).encode())
        for block in range(BLOCKS):
            file.seek((size_bytes - BLOCK_BYTES) * block // (BLOCKS - 1))
            hasher.update(file.read(BLOCK_BYTES))
    return hasher.hexdigest()


def _folder(objects: Objects, path: str) -> tuple[int, str]:
    """Return the size of the files in a folder, and the digest of its names and sizes. Raises OSError."""
    hasher, total = objects.hasher(), 0
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda entry: os.fsencode(entry.name)):
            size = entry.stat().st_size if entry.is_file() else -1
            total += max(size, 0)
            hasher.update(os.fsencode(entry.name) + f"\0{size}\0".encode())
    return total, hasher.hexdigest()


def join(events: Iterable[Reads]) -> ReadList:
    """Return the reads of events together. The first record of a path counts."""
    paths: dict[str, ReadPath] = {}
    hosts: dict[str, None] = {}
    more = False
    for event in events:
        for read in event.paths:
            paths.setdefault(read.path, read)
        hosts |= dict.fromkeys(event.hosts)
        more = more or event.more
    return ReadList(paths=paths, hosts=tuple(hosts), more=more)


def of_runs(repo: Repository, runs: Iterable[str]) -> ReadList:
    """Return the reads of all attempts of runs. Raises CorruptObject."""
    loaded = (summaries.load(repo, run, attempt) for run in runs for attempt in ledger.attempts(repo, run))
    return join(event for origins in loaded for event in origins.get(NODE, ()) if isinstance(event, Reads))


def changes_since(repo: Repository, run: str) -> tuple[Change, ...]:
    """Return the files and folders that a run read, and that are missing now or have another content, by path."""
    recorded = of_runs(repo, [run]).paths
    return _different(recorded, {path: measure(repo.objects, path) for path in recorded})


def between(repo: Repository, a: str, b: str) -> tuple[Change, ...]:
    """Return the files that runs `a` and `b` read with different contents. Raises CorruptObject."""
    old, new = of_runs(repo, [a]).paths, of_runs(repo, [b]).paths
    return _different({path: read for path, read in old.items() if path in new}, new)


def _different(old: Mapping[str, ReadPath], new: Mapping[str, ReadPath | None]) -> tuple[Change, ...]:
    pairs = ((before, new[path]) for path, before in sorted(old.items()) if before.digest is not None)
    return tuple(
        Change(
            part=PART,
            name=before.path,
            old=before.digest,
            new=None if after is None else after.digest,
            detail="it is missing" if after is None else f"{before.size_bytes:,} bytes → {after.size_bytes:,} bytes",
        )
        for before, after in pairs
        if after is None or after.digest != before.digest
    )
