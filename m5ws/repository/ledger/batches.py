"""The stored bytes of a batch. A large batch is stored compressed, and a small batch as it is (docs/format.md).

A compressed batch has the same run, number and heads in the clear. So both kinds are checked in the same way, and
readers of a ledger see `Batch` alone.
"""

import zlib
from collections.abc import Container, Iterator, Mapping, Sequence

import blake3
import msgspec

from m5ws.errors import CorruptObject
from m5ws.records import codec
from m5ws.records.ledger import COMPRESSED_BYTES, AnyBatch, Batch, CompressedBatch, Origin

_LEAST_BYTES = 16 * 2**10
"""Smaller batches, which are usual, stay readable and cost no time (docs/design/0025-compressed-batches.md)."""
_by_origin = msgspec.msgpack.Decoder(dict[Origin, tuple[msgspec.Raw, ...]])


def encode_events(events: Mapping[str, Sequence[bytes]]) -> msgspec.Raw:
    """Return encoded events by origin as the map of a batch."""
    return msgspec.Raw(codec.encode_plain({origin: [*map(msgspec.Raw, each)] for origin, each in events.items()}))


def events(batch: Batch, origins: Container[str] | None = None) -> Iterator[tuple[str, msgspec.Raw]]:
    """Yield the events of a batch as stored, with their origins; the events of `origins` alone if it is given.

    Raises CorruptObject.
    """
    try:
        by_origin = _by_origin.decode(batch.events)
    except codec.UNREADABLE as error:
        place = f"batch {batch.seq} of node {batch.node} in attempt {batch.attempt} of run {batch.run}"
        raise CorruptObject(f"{place} has events that cannot be decoded: {error}") from error
    for origin, stored in by_origin.items():
        if origins is None or origin in origins:
            yield from ((origin, event) for event in stored)


def encode(batch: Batch) -> bytes:
    """Return the bytes that a batch is stored as."""
    size_bytes = len(bytes(batch.events))
    if not _LEAST_BYTES <= size_bytes <= COMPRESSED_BYTES:
        return codec.encode(batch)
    stream = zlib.compress(bytes(batch.events))
    fields = msgspec.structs.asdict(batch) | {"events": stream}
    digest = blake3.blake3(stream).hexdigest()
    return codec.encode(CompressedBatch(size_bytes=size_bytes, digest=digest, **fields))


def decode(data: bytes, key: str) -> Batch:
    """Return the batch in the stored bytes of `key`. Raises UnknownSchema, CorruptObject."""
    stored: AnyBatch = codec.decode(data, AnyBatch, key)  # type: ignore[arg-type]
    if isinstance(stored, Batch):
        return stored
    if blake3.blake3(stored.events).hexdigest() != stored.digest:
        raise CorruptObject(f"checksum mismatch: batch {key} has compressed events that do not match their digest")
    fields = msgspec.structs.asdict(stored) | {"events": msgspec.Raw(_expand(stored.events, stored.size_bytes, key))}
    del fields["size_bytes"], fields["digest"]
    return Batch(**fields)


def _expand(compressed: bytes, size_bytes: int, key: str) -> bytes:
    """Return the `size_bytes` in a zlib stream, without more memory than that. Raises CorruptObject."""
    stream = zlib.decompressobj()
    try:
        # One byte more than expected: the stream is then read to its end, and a longer stream is detected.
        events = stream.decompress(compressed, size_bytes + 1)
    except zlib.error as error:
        raise CorruptObject(f"batch {key} has compressed events that cannot be expanded: {error}") from error
    if len(events) != size_bytes or not stream.eof or stream.unused_data:
        raise CorruptObject(f"batch {key} has compressed events that do not end after {size_bytes} bytes")
    return events
