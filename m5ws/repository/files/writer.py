"""One pass over files in path order that makes their bytes durable: the writing half of `trees`.

Digests match the stored bytes: a file is hashed and uploaded from the same read, and read again if its stamp changed.
Memory is bounded by `_PACKS_IN_FLIGHT` + 1 packs, `_IN_FLIGHT_BYTES` and a chunk.
"""

import os
import stat
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import msgspec

from m5ws.errors import M5Error
from m5ws.filesystem import Stamp, stamp
from m5ws.progress import Progress
from m5ws.records import codec
from m5ws.records.base import Digest, Record
from m5ws.records.tree import Entry, Pack, Packing, Slice, Tree
from m5ws.repository import concurrency, presence
from m5ws.repository.files import mappings, pack_reuse
from m5ws.repository.files.index import Index
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.validation import joint_digest
from m5ws.repository.objects import Objects
from m5ws.store.interface import Buffer
from m5ws.store.local import read

_ATTEMPTS = 5
_IN_FLIGHT_BYTES = 256 * 2**20
_PACKS_IN_FLIGHT = 16
_ASKED_BYTES = 2**20
"""Objects below this size are uploaded without an existence check, which would take as long."""
_PACK_END = 8
"""A pack that is no longer small grows by another eighth of `Format.pack_bytes` on average, until its content
ends it.
"""


class FileChanged(M5Error):
    """A file was modified while it was captured."""

    hint = "Run the command again when nothing writes to the file, or exclude it: [code] exclude in m5ws.toml."


class _Member(msgspec.Struct):
    """A small file to be packed. `data` is None if the digest came from the index."""

    location: Path | str
    digest: Digest
    size: int
    data: bytes | None


class _Chunked(msgspec.Struct):
    """A large file that was read with the stamp `seen`, and is being uploaded."""

    position: int
    location: Path | str
    seen: Stamp
    sending: list[Future[Slice]]
    traced: bool


class TreeWriter:
    """Writes packs and chunks. `needed` maps every object of the tree to its length.

    `mapped` is True if some file can be written to without a trace, so the tree is not recorded as unchanged. Small
    files in existing packs are left there (`_held`).
    """

    def __init__(self, objects: Objects, index: Index | None, dry_run: bool, began_ns: int) -> None:
        self._objects = objects
        self._index = index
        self._dry_run = dry_run
        self._began_ns = began_ns
        self._pool = ThreadPoolExecutor(_PACKS_IN_FLIGHT, thread_name_prefix="m5ws-tree")
        self._counting = threading.Lock()
        self._pack: list[_Member] = []
        self._pack_bytes = 0
        self._packs: list[Future[Pack]] = []
        self._held: dict[bytes, Pack] = {}
        self._placed: set[Digest] = set()
        self._kept: dict[Digest, Pack] = {}
        self._chunked: list[_Chunked] = []
        self._sending: deque[Future[Slice]] = deque()
        self._mapped: frozenset[int] | None = None
        self.needed: dict[Digest, int] = {}
        self.new_bytes = 0
        self.mapped = False

    def put(self, data: Buffer) -> Digest:
        """Make one object durable; on a dry run, only compute its digest."""
        digest, size = self._objects.digest(data), memoryview(data).nbytes
        with self._counting:
            # The first thread uploads it. The tree is written only after all uploads.
            first, self.needed[digest] = digest not in self.needed, size
        asks = self._dry_run or size >= _ASKED_BYTES
        if first and not (asks and self._objects.has(digest, size)):
            new = self._dry_run or self._objects.place(digest, data)
            with self._counting:
                self.new_bytes += size if new else 0
        return digest

    def entries(
        self, files: Sequence[SourceFile], stats: Sequence[os.stat_result], progress: Progress | None
    ) -> tuple[Entry, ...]:
        """Capture `files`, sorted by path, and return their entries in that order."""
        entries: list[Entry] = []
        with self._pool:
            known = self._known_chunks(files, stats)
            packs = self._known_packs()
            packed = {name for pack in packs for name in pack.names}
            waiting = list[_Member]()
            for position, (file, status) in enumerate(zip(files, stats, strict=True)):
                if progress and position % 256 == 0:
                    progress("capturing files", position, len(files))
                entry, member = self._capture(file, status, position, known.get(position))
                entries.append(entry)
                if member is not None and bytes.fromhex(member.digest) in packed:
                    # Whether a pack is worth reusing depends on all its files. Otherwise this file is read again.
                    member.data = None
                    waiting.append(member)
                elif member is not None:
                    self._add(member)
            if waiting:
                self._held = pack_reuse.select_packs(
                    self._objects, packs, {bytes.fromhex(member.digest) for member in waiting}
                )
            for member in waiting:
                self._add(member)
            self._end_pack()
            for chunked in self._chunked:
                entries[chunked.position] = self._finished(entries[chunked.position], chunked)
            for future in self._packs:
                future.result()
        if progress:
            progress("capturing files", len(files), len(files))
        return tuple(entries)

    def finish(self, tree: Tree) -> tuple[Digest, Digest | None]:
        """Make a tree and its packing durable, and return both digests.

        None if it needs no packing. After `entries`.
        """
        packs = self._all_packs()
        records: list[Record] = [tree, *([Packing(packs=packs)] if packs else [])]
        digest, *packing = concurrency.for_each(lambda record: self.put(codec.encode(record)), records)
        return digest, packing[0] if packing else None

    def _all_packs(self) -> tuple[Pack, ...]:
        written = {pack.object: pack for pack in (future.result() for future in self._packs)}
        packs = tuple(pack for _, pack in sorted((self._kept | written).items()))
        if self._index is not None and not self._dry_run:
            self._index.remember_packs({pack.object: (pack.files, pack.sizes_bytes) for pack in packs})
        return packs

    def _capture(
        self, file: SourceFile, status: os.stat_result, position: int, known: tuple[Slice, ...] | None
    ) -> tuple[Entry, _Member | None]:
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(os.fsencode(file.location))
            digest = self._objects.digest(target)
            return Entry(path=file.path, mode="link", size_bytes=len(target), digest=digest, link=target), None
        if not stat.S_ISREG(status.st_mode):
            raise M5Error(f"{file.location} is neither a file nor a symbolic link", hint="Exclude it: [code] exclude.")
        mode: Literal["file", "exec"] = "exec" if status.st_mode & stat.S_IXUSR else "file"
        if status.st_size >= self._objects.format.small_bytes:
            entry = Entry(path=file.path, mode=mode, size_bytes=0, digest="")
            if known is not None:
                return self._with_parts(entry, known), None
            self._chunked.append(self._large(file.location, position))
            return entry, None
        member = self._small(file.location, stamp(status))
        entry = Entry(path=file.path, mode=mode, size_bytes=member.size, digest=member.digest)
        return entry, member if member.size else None

    # --- small files -------------------------------------------------------------------------------

    def _small(self, location: Path | str, seen: Stamp) -> _Member:
        key = os.fsencode(location)
        known = self._index.file(key, seen) if self._index is not None else None
        if known is not None:
            return _Member(location, known, seen[0], None)
        traced = self._is_traced(seen)
        data, seen = _read_steady(location)
        if len(data) >= self._objects.format.small_bytes:
            raise FileChanged(f"{location} is being modified")
        digest = self._objects.digest(data)
        if self._index is not None and traced:
            self._index.remember_file(key, seen, digest, self._began_ns)
        return _Member(location, digest, len(data), data)

    def _is_traced(self, seen: Stamp) -> bool:
        """Return True if later writes to a file change its stamps. Call before reading the file."""
        if self._index is None:
            return True
        if self._mapped is None:
            self._mapped = mappings.inodes()
        mapped = seen[3] in self._mapped
        self.mapped = self.mapped or mapped
        return not mapped

    def _add(self, member: _Member) -> None:
        if member.digest in self._placed:
            return
        self._placed.add(member.digest)
        if (held := self._held.get(bytes.fromhex(member.digest))) is not None:
            self._kept[held.object] = held
            with self._counting:
                self.needed[held.object] = held.size_bytes
            return
        if self._pack_bytes + member.size > self._objects.format.pack_bytes:
            self._end_pack()
        self._pack.append(member)
        self._pack_bytes += member.size
        limit = self._objects.format.pack_bytes
        if self._pack_bytes >= limit // pack_reuse.LEAST_PACK and _ends_pack(member, limit // _PACK_END):
            self._end_pack()

    def _end_pack(self) -> None:
        if not self._pack:
            return
        self._packs.append(self._pool.submit(self._write_pack, self._pack))
        self._pack, self._pack_bytes = [], 0
        if len(self._packs) > _PACKS_IN_FLIGHT:
            self._packs[-_PACKS_IN_FLIGHT - 1].result()

    def _write_pack(self, members: list[_Member]) -> Pack:
        digest = self.put(b"".join(self._data(member) for member in members))
        for member in members:
            member.data = None
        names = bytes.fromhex("".join(member.digest for member in members))
        return Pack(object=digest, files=names, sizes_bytes=tuple(member.size for member in members))

    def _known_packs(self) -> list[Pack]:
        """Return the packs that this machine has written, from the index."""
        known = self._index.packs() if self._index is not None else {}
        return [Pack(object=pack, files=names, sizes_bytes=sizes) for pack, (names, sizes) in known.items()]

    def _data(self, member: _Member) -> bytes:
        if member.data is not None:
            return member.data
        data, _ = _read_steady(member.location)
        if self._objects.digest(data) != member.digest:
            raise FileChanged(f"{member.location} was modified while it was captured")
        return data

    # --- large files -------------------------------------------------------------------------------

    def _known_chunks(
        self, files: Sequence[SourceFile], stats: Sequence[os.stat_result]
    ) -> dict[int, tuple[Slice, ...]]:
        """Return, by position, the chunks of large files that are unchanged and in the store, checked together."""
        if self._index is None:
            return {}
        known = dict[int, tuple[Slice, ...]]()
        for position, (file, status) in enumerate(zip(files, stats, strict=True)):
            if stat.S_ISREG(status.st_mode) and status.st_size >= self._objects.format.small_bytes:
                parts = self._index.chunks(os.fsencode(file.location), stamp(status))
                known |= {position: parts} if parts is not None else {}
        needs = {part.object: part.size_bytes for parts in known.values() for part in parts}
        lacking = presence.missing(self._objects, needs) if needs else set()
        kept = {position: parts for position, parts in known.items() if lacking.isdisjoint(p.object for p in parts)}
        self.needed.update({part.object: part.size_bytes for parts in kept.values() for part in parts})
        return kept

    def _large(self, location: Path | str, position: int) -> "_Chunked":
        """Read a large file once, chunk by chunk, and return its uploads in progress."""
        for _ in range(_ATTEMPTS):
            with open(location, "rb", buffering=0) as file:
                before = stamp(os.fstat(file.fileno()))
                traced = self._is_traced(before)
                sizes, futures = self._send(file.fileno())
                after = stamp(os.fstat(file.fileno()))
            if before == after and sum(sizes) == after[0] >= self._objects.format.small_bytes:
                return _Chunked(position, location, after, futures, traced)
        raise FileChanged(f"{location} is being modified")

    def _send(self, descriptor: int) -> tuple[list[int], list[Future[Slice]]]:
        """Start the uploads of a file's chunks. Return their sizes, and futures of their slices."""
        sizes, futures = list[int](), list[Future[Slice]]()
        chunk_bytes = self._objects.format.file_chunk_bytes
        # Each chunk is in its own memory: the hashed bytes must be the uploaded bytes, whatever is written to the file.
        while chunk := read(descriptor, chunk_bytes):
            sizes.append(len(chunk))
            futures.append(self._pool.submit(self._put_chunk, chunk))
            self._sending.append(futures[-1])
            if len(self._sending) * chunk_bytes > _IN_FLIGHT_BYTES:
                self._sending.popleft().result()
        return sizes, futures

    def _put_chunk(self, chunk: bytes) -> Slice:
        digest = self.put(chunk)
        return Slice(object=digest, offset=0, size_bytes=len(chunk), digest=digest)

    def _finished(self, entry: Entry, file: "_Chunked") -> Entry:
        """Return the entry of a large file after all its chunks are in the store."""
        parts = tuple(future.result() for future in file.sending)
        if self._index is not None and not self._dry_run and file.traced:
            self._index.remember_chunks(os.fsencode(file.location), file.seen, parts, self._began_ns)
        return self._with_parts(entry, parts)

    def _with_parts(self, entry: Entry, parts: tuple[Slice, ...]) -> Entry:
        size = sum(part.size_bytes for part in parts)
        digest = joint_digest(self._objects, [part.digest for part in parts])
        return msgspec.structs.replace(entry, size_bytes=size, digest=digest, parts=parts)


def _ends_pack(member: _Member, aim_bytes: int) -> bool:
    """Return True if a pack ends after this file: decided by its content alone, once in `aim_bytes` on average.

    The probability is never 1; otherwise two ways of splitting the same large files would never converge.
    """
    return int(member.digest[:8], 16) * aim_bytes < min(member.size, aim_bytes // 2) << 32


def _read_steady(location: Path | str) -> tuple[bytes, Stamp]:
    """Return a file's bytes and their stamp. Raises FileChanged if it keeps changing."""
    for _ in range(_ATTEMPTS):
        with open(location, "rb", buffering=0) as file:
            before = stamp(os.fstat(file.fileno()))
            data = file.read()
            after = stamp(os.fstat(file.fileno()))
        if before == after and len(data) == after[0]:
            return data, after
    raise FileChanged(f"{location} is being modified")
