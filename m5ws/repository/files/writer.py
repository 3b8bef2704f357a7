"""One pass over files in path order that makes their bytes durable: the writing half of `trees`.

Digests match the stored bytes: a file is hashed and uploaded from the same read, and read again if its stamp changed.
A pack that this machine wrote is not made again. Memory is bounded by `_PACKS_IN_FLIGHT` + 1 packs, `_IN_FLIGHT_BYTES`
and a chunk.
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
from m5ws.progress import Progress, report
from m5ws.records.base import Digest
from m5ws.records.tree import Entry, Pack, Slice, Tree
from m5ws.repository import presence
from m5ws.repository.files.index import Index
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.packs import PackGroups
from m5ws.repository.files.validation import joint_digest
from m5ws.repository.objects import Objects
from m5ws.store.interface import Buffer
from m5ws.store.local import read

_ATTEMPTS = 5
_IN_FLIGHT_BYTES = 256 * 2**20
_PACKS_IN_FLIGHT = 16
_ASKED_BYTES = 2**20
"""Objects below this size are uploaded without an existence check, which would take as long."""


class FileChanged(M5Error):
    """A file was modified while it was captured."""

    hint = "Run the command again when nothing writes to the file, or exclude the file: [code] exclude in m5ws.toml."


class _Member(msgspec.Struct):
    """A small file to be packed. `data` is None if the digest came from the index."""

    location: Path | str
    digest: Digest
    size: int
    data: bytes | None


class _Packed(msgspec.Struct):
    """The files of a pack. Its `object` is from the index, or is being written."""

    members: list[_Member]
    object: Digest | None
    writing: Future[Digest] | None = None

    @property
    def key(self) -> bytes:
        """The digests of the files."""
        return bytes.fromhex("".join(member.digest for member in self.members))


class _Chunked(msgspec.Struct):
    """A large file that was read with the stamp `seen`, and is being uploaded."""

    position: int
    location: Path | str
    seen: Stamp
    sending: list[Future[Slice]]


class TreeWriter:
    """Writes packs and chunks. `needed` maps every object of the tree to its length."""

    def __init__(self, objects: Objects, index: Index | None, dry_run: bool, began_ns: int) -> None:
        self._objects = objects
        self._index = index
        self._dry_run = dry_run
        self._began_ns = began_ns
        self._pool = ThreadPoolExecutor(_PACKS_IN_FLIGHT, thread_name_prefix="m5ws-tree")
        self._counting = threading.Lock()
        self._groups = PackGroups[_Member](objects.format.pack_bytes)
        self._packs: list[_Packed] = []
        self._chunked: list[_Chunked] = []
        self._sending: deque[Future[Slice]] = deque()
        self.needed: dict[Digest, int] = {}
        self.new_bytes = 0

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

    def write(self, files: Sequence[SourceFile], stats: Sequence[os.stat_result], progress: Progress | None) -> Tree:
        """Capture `files`, sorted by path, and return their tree, which is not durable yet."""
        entries: list[Entry] = []
        with self._pool:
            known = self._known_chunks(files, stats)
            for position, (file, status) in enumerate(zip(files, stats, strict=True)):
                if progress and position % 256 == 0:
                    progress("capturing files", position, len(files))
                entry, member = self._capture(file, status, position, known.get(position))
                entries.append(entry)
                if member is not None:
                    for group in self._groups.add(member, member.digest, member.size):
                        self._begin_pack(group)
            for group in self._groups.end():
                self._begin_pack(group)
            self._rewrite_lost()
            for chunked in self._chunked:
                entries[chunked.position] = self._finished(entries[chunked.position], chunked)
            packs = tuple(map(self._end_pack, self._packs))
        report(progress, "capturing files", len(files), len(files))
        return Tree(entries=tuple(entries), packs=packs)

    def _capture(
        self, file: SourceFile, status: os.stat_result, position: int, known: tuple[Slice, ...] | None
    ) -> tuple[Entry, _Member | None]:
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(os.fsencode(file.location))
            digest = self._objects.digest(target)
            return Entry(path=file.path, mode="link", size_bytes=len(target), digest=digest, link=target), None
        if not stat.S_ISREG(status.st_mode):
            raise M5Error(
                f"{file.location} is neither a file nor a symbolic link", hint="Exclude the path: [code] exclude."
            )
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
        if isinstance(known, str):
            return _Member(location, known, seen[0], None)
        data, seen = _read_steady(location)
        if len(data) >= self._objects.format.small_bytes:
            raise FileChanged(f"{location} is being modified")
        digest = self._objects.digest(data)
        if self._index is not None:
            self._index.remember_file(key, seen, digest, self._began_ns)
        return _Member(location, digest, len(data), data)

    def _begin_pack(self, members: list[_Member]) -> None:
        """Start to write a pack, unless this machine wrote it before."""
        pack = _Packed(members, None)
        if self._index is not None and (known := self._index.pack(pack.key)) is not None:
            pack.object = known
            for member in members:
                member.data = None
        else:
            pack.writing = self._pool.submit(self._write_pack, members)
        self._packs.append(pack)
        if len(self._packs) > _PACKS_IN_FLIGHT and (earlier := self._packs[-_PACKS_IN_FLIGHT - 1].writing):
            earlier.result()

    def _rewrite_lost(self) -> None:
        """Start to write the known packs that the store does not have."""
        known = {pack.object: pack for pack in self._packs if pack.object is not None}
        sizes = {digest: sum(member.size for member in pack.members) for digest, pack in known.items()}
        lost = presence.missing(self._objects, sizes, lenient=True) if sizes else set()
        with self._counting:
            self.needed.update({digest: size for digest, size in sizes.items() if digest not in lost})
        for digest in lost:
            known[digest].writing = self._pool.submit(self._write_pack, known[digest].members)

    def _end_pack(self, pack: _Packed) -> Pack:
        """Return a pack that is durable, and record it in the index."""
        digest = pack.writing.result() if pack.writing is not None else pack.object
        assert digest is not None
        if self._index is not None and not self._dry_run:
            self._index.remember_pack(pack.key, digest)
        return Pack(object=digest, files=len(pack.members))

    def _write_pack(self, members: list[_Member]) -> Digest:
        digest = self.put(b"".join(self._data(member) for member in members))
        for member in members:
            member.data = None
        return digest

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
                parts = self._index.file(os.fsencode(file.location), stamp(status))
                known |= {position: parts} if isinstance(parts, tuple) else {}
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
                sizes, futures = self._send(file.fileno())
                after = stamp(os.fstat(file.fileno()))
            if before == after and sum(sizes) == after[0] >= self._objects.format.small_bytes:
                return _Chunked(position, location, after, futures)
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
        if self._index is not None and not self._dry_run:
            self._index.remember_file(os.fsencode(file.location), file.seen, parts, self._began_ns)
        return self._with_parts(entry, parts)

    def _with_parts(self, entry: Entry, parts: tuple[Slice, ...]) -> Entry:
        size = sum(part.size_bytes for part in parts)
        digest = joint_digest(self._objects, [part.digest for part in parts])
        return msgspec.structs.replace(entry, size_bytes=size, digest=digest, parts=parts)


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
