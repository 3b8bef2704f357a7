"""One pass over files in path order, making their bytes durable: the writing half of `trees`.

What is read is exactly what is named: a file is hashed from the same bytes that are stored, and is read
again if its stamp moved meanwhile. Memory is bounded by `_PACKS_IN_FLIGHT` + 1 packs and `_IN_FLIGHT` + 1 chunks.
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
from m5ws.ports import Buffer, Progress, SourceFile
from m5ws.records import Digest, Entry, Slice
from m5ws.repository import presence
from m5ws.repository.chunking import Memory, read_chunks
from m5ws.repository.entries import joint_digest
from m5ws.repository.index import Index, Stamp, stamp
from m5ws.repository.objects import Objects

_ATTEMPTS = 5
_IN_FLIGHT = 4
_PACKS_IN_FLIGHT = 16
_ASKED_BYTES = 2**20
"""What is smaller is sent without asking first whether it is there: the answer would take as long."""
_LEAST_PACK = 16
"""A pack has a sixteenth of `Format.pack_bytes` at least, and …"""
_PACK_END = 32
"""… a thirty-second more on the average, after which its content ends it."""


class FileChanged(M5Error):
    """A file was being written while it was captured."""

    hint = "Try again when nothing writes to it, or exclude it: [code] exclude in m5ws.toml."


class _Member(msgspec.Struct):
    """A small file on its way into a pack; `data` is None where the index knew the digest."""

    position: int
    location: Path | str
    digest: Digest
    size: int
    data: bytes | None


class _Chunked(msgspec.Struct):
    """A large file that was read as it was `seen`, and is being sent."""

    position: int
    location: Path | str
    seen: Stamp
    sending: list[Future[Slice]]


class TreeWriter:
    """Writes packs and chunks; `needed` maps every object of the tree to its length."""

    def __init__(self, objects: Objects, index: Index | None, dry_run: bool, began_ns: int) -> None:
        self._objects = objects
        self._index = index
        self._dry_run = dry_run
        self._began_ns = began_ns
        self._pool = ThreadPoolExecutor(_PACKS_IN_FLIGHT, thread_name_prefix="m5ws-tree")
        self._lacking: set[Digest] | None = None
        self._asking = threading.Lock()
        self._counting = threading.Lock()
        self._memory = Memory()
        self._pack: list[_Member] = []
        self._pack_bytes = 0
        self._packs: list[tuple[list[_Member], Future[dict[Digest, Slice]]]] = []
        self._chunked: list[_Chunked] = []
        self._sending: deque[Future[Slice]] = deque()
        self.needed: dict[Digest, int] = {}
        self.new_bytes = 0

    def put(self, data: Buffer) -> Digest:
        """Make one object durable, or only digest it on a dry run."""
        digest, size = self._objects.digest(data), memoryview(data).nbytes
        with self._counting:
            # Whoever is first makes it durable; the tree is not written before all have.
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
            for position, (file, found) in enumerate(zip(files, stats, strict=True)):
                if progress and position % 256 == 0:
                    progress("capturing files", position, len(files))
                entry, member = self._capture(file, found, position, known.get(position))
                entries.append(entry)
                if member is not None:
                    self._add(member)
            self._end_pack()
            for chunked in self._chunked:
                entries[chunked.position] = self._finished(entries[chunked.position], chunked)
            for members, future in self._packs:
                slices = future.result()
                for member in members:
                    part = (slices[member.digest],)
                    entries[member.position] = msgspec.structs.replace(entries[member.position], parts=part)
        if progress:
            progress("capturing files", len(files), len(files))
        return tuple(entries)

    def _capture(
        self, file: SourceFile, found: os.stat_result, position: int, known: tuple[Slice, ...] | None
    ) -> tuple[Entry, _Member | None]:
        if stat.S_ISLNK(found.st_mode):
            target = os.readlink(os.fsencode(file.location))
            digest = self._objects.digest(target)
            return Entry(path=file.path, mode="link", size_bytes=len(target), digest=digest, link=target), None
        if not stat.S_ISREG(found.st_mode):
            raise M5Error(f"{file.location} is neither a file nor a link", hint="Exclude it: [code] exclude.")
        mode: Literal["file", "exec"] = "exec" if found.st_mode & stat.S_IXUSR else "file"
        if found.st_size >= self._objects.format.small_bytes:
            entry = Entry(path=file.path, mode=mode, size_bytes=0, digest="")
            if known is not None:
                return self._with_parts(entry, known), None
            self._chunked.append(self._large(file.location, position))
            return entry, None
        member = self._small(file.location, stamp(found), position)
        entry = Entry(path=file.path, mode=mode, size_bytes=member.size, digest=member.digest)
        return entry, member if member.size else None

    # --- small files -------------------------------------------------------------------------------

    def _small(self, location: Path | str, seen: Stamp, position: int) -> _Member:
        key = os.fsencode(location)
        known = self._index.file(key, seen) if self._index is not None else None
        if known is not None:
            return _Member(position, location, known, seen[0], None)
        data, seen = _read_steady(location)
        digest = self._objects.digest(data)
        if self._index is not None:
            self._index.remember_file(key, seen, digest, self._began_ns)
        return _Member(position, location, digest, len(data), data)

    def _add(self, member: _Member) -> None:
        if self._pack_bytes + member.size > self._objects.format.pack_bytes:
            self._end_pack()
        self._pack.append(member)
        self._pack_bytes += member.size
        limit = self._objects.format.pack_bytes
        if self._pack_bytes >= limit // _LEAST_PACK and _ends_pack(member, limit // _PACK_END):
            self._end_pack()

    def _end_pack(self) -> None:
        if not self._pack:
            return
        self._packs.append((self._pack, self._pool.submit(self._write_pack, self._pack)))
        self._pack, self._pack_bytes = [], 0
        if len(self._packs) > _PACKS_IN_FLIGHT:
            self._packs[-_PACKS_IN_FLIGHT - 1][1].result()

    def _write_pack(self, members: list[_Member]) -> dict[Digest, Slice]:
        """Write a pack and return each member's slice by its digest; equal members are stored once."""
        unique = list({member.digest: member for member in members}.values())
        size = sum(member.size for member in unique)
        pack = self._known_pack(unique) or self._new_pack(unique)
        self.needed[pack] = size
        slices, offset = {}, 0
        for member in unique:
            slices[member.digest] = Slice(object=pack, offset=offset, size_bytes=member.size, digest=member.digest)
            offset += member.size
        for member in members:
            member.data = None
        return slices

    def _known_pack(self, unique: list[_Member]) -> Digest | None:
        known = self._index.pack(self._members_key(unique)) if self._index is not None else None
        return known if known is not None and known not in self._absent_packs() else None

    def _absent_packs(self) -> set[Digest]:
        """Return which of the packs that the index knows are not in the store: asked for all of them at once."""
        with self._asking:
            if self._lacking is None:
                known = self._index.packs() if self._index is not None else ()
                self._lacking = presence.missing(self._objects, dict.fromkeys(known, 0))
            return self._lacking

    def _new_pack(self, unique: list[_Member]) -> Digest:
        pack = self.put(b"".join(self._data(member) for member in unique))
        if self._index is not None and not self._dry_run:
            self._index.remember_pack(self._members_key(unique), pack)
        return pack

    def _members_key(self, unique: list[_Member]) -> Digest:
        return self._objects.digest("".join(member.digest for member in unique).encode())

    def _data(self, member: _Member) -> bytes:
        if member.data is not None:
            return member.data
        data, _ = _read_steady(member.location)
        if self._objects.digest(data) != member.digest:
            raise FileChanged(f"{member.location} was changed while it was captured")
        return data

    # --- large files -------------------------------------------------------------------------------

    def _known_chunks(
        self, files: Sequence[SourceFile], stats: Sequence[os.stat_result]
    ) -> dict[int, tuple[Slice, ...]]:
        """Return, by position, the chunks of large files that are unchanged and in the store: asked for all at once."""
        if self._index is None:
            return {}
        known = dict[int, tuple[Slice, ...]]()
        for position, (file, found) in enumerate(zip(files, stats, strict=True)):
            if stat.S_ISREG(found.st_mode) and found.st_size >= self._objects.format.small_bytes:
                parts = self._index.chunks(os.fsencode(file.location), stamp(found))
                known |= {position: parts} if parts is not None else {}
        needs = {part.object: part.size_bytes for parts in known.values() for part in parts}
        lacking = presence.missing(self._objects, needs) if needs else set()
        kept = {position: parts for position, parts in known.items() if lacking.isdisjoint(p.object for p in parts)}
        self.needed.update({part.object: part.size_bytes for parts in kept.values() for part in parts})
        return kept

    def _large(self, location: Path | str, position: int) -> "_Chunked":
        """Read a large file once, a chunk at a time, and return what is being sent of it."""
        for _ in range(_ATTEMPTS):
            with open(location, "rb", buffering=0) as file:
                before = stamp(os.fstat(file.fileno()))
                sizes, futures = self._send(file.fileno())
                after = stamp(os.fstat(file.fileno()))
            if before == after and sum(sizes) == after[0]:
                return _Chunked(position, location, after, futures)
        raise FileChanged(f"{location} is being written to")

    def _send(self, descriptor: int) -> tuple[list[int], list[Future[Slice]]]:
        """Send the chunks of a file; return their sizes, and their slices to come. Other files' may be on their way."""
        sizes, futures = list[int](), list[Future[Slice]]()
        for chunk in read_chunks(descriptor, self._objects.format.chunk_bytes, self._memory):
            sizes.append(chunk.nbytes)
            futures.append(self._pool.submit(self._put_chunk, chunk))
            self._sending.append(futures[-1])
            if len(self._sending) > _IN_FLIGHT:
                self._sending.popleft().result()
        return sizes, futures

    def _put_chunk(self, chunk: memoryview) -> Slice:
        size, digest = chunk.nbytes, self.put(chunk)
        self._memory.give_back(chunk)
        return Slice(object=digest, offset=0, size_bytes=size, digest=digest)

    def _finished(self, entry: Entry, file: "_Chunked") -> Entry:
        """Return the entry of a large file whose chunks are all in the store."""
        parts = tuple(future.result() for future in file.sending)
        if self._index is not None and not self._dry_run:
            self._index.remember_chunks(os.fsencode(file.location), file.seen, parts, self._began_ns)
        return self._with_parts(entry, parts)

    def _with_parts(self, entry: Entry, parts: tuple[Slice, ...]) -> Entry:
        size = sum(part.size_bytes for part in parts)
        digest = joint_digest(self._objects, [part.digest for part in parts])
        return msgspec.structs.replace(entry, size_bytes=size, digest=digest, parts=parts)


def _ends_pack(member: _Member, aim_bytes: int) -> bool:
    """Return whether a pack ends after this file: by its content alone, and once in `aim_bytes` on the average.

    Never surely: or two ways of cutting the same large files would never come together again.
    """
    return int(member.digest[:8], 16) * aim_bytes < min(member.size, aim_bytes // 2) << 32


def _read_steady(location: Path | str) -> tuple[bytes, Stamp]:
    """Return a file's bytes and the stamp they belong to. Raises FileChanged if it does not hold still."""
    for _ in range(_ATTEMPTS):
        with open(location, "rb", buffering=0) as file:
            before = stamp(os.fstat(file.fileno()))
            data = file.read()
            after = stamp(os.fstat(file.fileno()))
        if before == after and len(data) == after[0]:
            return data, after
    raise FileChanged(f"{location} is being written to")
