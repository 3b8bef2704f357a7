"""A rank's events on local disk, before they are in the store.

Each event is one `write(2)`, which survives a kill -9 of the process and costs microseconds. The training loop never
waits for the store. The supervisor turns complete frames into ledger batches; a frame truncated by a kill is never
delivered.
"""

import logging
import os
import struct
import threading
import zlib
from pathlib import Path
from typing import NamedTuple

import blake3
import msgspec

from m5ws import secret_scan
from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.records.ledger import NODE, Event

_log = logging.getLogger(__name__)
_FRAME = struct.Struct("<II")


def genesis(run: str, attempt: int, origin: str) -> Digest:
    """Return the head of a rank, or of another origin, before its first event."""
    return blake3.blake3(f"{run}/{attempt}/{origin}".encode()).hexdigest()


def chain(head: Digest, link: bytes) -> Digest:
    """Return the head after an encoded event, or after the events of a batch."""
    return blake3.blake3(bytes.fromhex(head) + link).hexdigest()


class RankHeads:
    """The head of each rank of an attempt after its events, which are added in their order."""

    def __init__(self, run: str, attempt: int) -> None:
        self._run, self._attempt = run, attempt
        self.by_rank: dict[str, Digest] = {}

    def add(self, origin: str, event: bytes) -> Digest | None:
        """Add an encoded event, and return the head of its rank; None for an event of the node itself."""
        if origin == NODE:
            return None
        head = self.by_rank.get(origin) or genesis(self._run, self._attempt, origin)
        self.by_rank[origin] = chain(head, event)
        return self.by_rank[origin]


class _Spooled(NamedTuple):
    """The head, the events that may not be in the file yet, and the file's size without them."""

    head: Digest
    frames: bytes
    begin: int


class SpoolWriter:
    """Appends events to a new file. `head` is the head after the last event. Thread-safe.

    Ctrl-C may interrupt an append between any two instructions. The event is then whole or missing: one assignment adds
    it, and the size of the file shows how much of it is written.

    Only the process that made the writer appends. A fork that leaves the script of a rank records nothing, because its
    events would break the chain of the rank's events.
    """

    def __init__(self, path: Path, head: Digest) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._lock, self._process = threading.Lock(), os.getpid()
        self._spooled = _Spooled(head, b"", 0)

    @property
    def head(self) -> Digest:
        return self._spooled.head

    def append(self, event: Event) -> Digest:
        """Write one event, with secrets in its texts masked, and return the head after it.

        If the disk is full, the event is kept in memory and written with the next event, so training continues.
        """
        if os.getpid() != self._process:
            return self.head
        data = codec.encode(_masked(event))
        frame = _FRAME.pack(len(data), zlib.crc32(data)) + data
        with self._lock:
            head, frames, begin = self._spooled
            self._spooled = _Spooled(chain(head, data), frames + frame, begin)
            self._write()
            return self.head

    def close(self) -> None:
        self._write()
        os.close(self._descriptor)

    def _write(self) -> None:
        head, frames, begin = self._spooled
        try:
            while (written := os.fstat(self._descriptor).st_size - begin) < len(frames):
                os.write(self._descriptor, frames[written:])
            self._spooled = _Spooled(head, b"", begin + len(frames))
        except OSError as error:
            _log.warning("cannot write an event; keeping it in memory: %s", error)


def _masked(event: Event) -> Event:
    """Return an event with secrets in its messages masked: errors quote the output of scripts and libraries."""
    texts = {name: text for name in ("message", "error") if isinstance(text := getattr(event, name, None), str)}
    masked = {name: secret_scan.masked(text) for name, text in texts.items()}
    return msgspec.structs.replace(event, **masked) if masked else event


class Spools:
    """Follows all spools in a folder, by origin."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: dict[str, SpoolReader] = {}

    def read(self) -> dict[str, list[bytes]]:
        """Return the encoded events of each origin that became complete since the last call."""
        origins = sorted(path.stem for path in self._folder.glob("*.spool"))
        return {origin: self._reader(origin).read() for origin in origins}

    def _reader(self, origin: str) -> "SpoolReader":
        return self._readers.setdefault(origin, SpoolReader(self._folder / f"{origin}.spool"))


class SpoolReader:
    """Follows a spool that another process writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self, most_bytes: int = -1) -> list[bytes]:
        """Return the encoded events that became complete since the last call, from at most `most_bytes` of the file."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read(most_bytes)
        except FileNotFoundError:
            return []
        events, position = [], 0
        while position + _FRAME.size <= len(data):
            size, check = _FRAME.unpack_from(data, position)
            event = data[position + _FRAME.size : position + _FRAME.size + size]
            if len(event) < size or zlib.crc32(event) != check:
                break
            events.append(event)
            position += _FRAME.size + size
        self._offset += position
        return events
