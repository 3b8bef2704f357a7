"""The stored bytes of a batch. A large batch is stored compressed, and a small one as it is (docs/format.md).

A compressed batch has the same run, number and heads in the clear. So both kinds are checked in the same way, and
readers of a ledger see `Batch` alone.
"""

import itertools
import zlib

import blake3
import msgspec

from m5ws.errors import CorruptObject
from m5ws.records import codec
from m5ws.records.ledger import COMPRESSED_BYTES, AnyBatch, Batch, CompressedBatch

_LEAST_BYTES = 16 * 2**10
"""Smaller batches, the usual ones, stay readable and cost no time (docs/design/0025-compressed-batches.md)."""


def encode(batch: Batch) -> bytes:
    """Return the bytes that a batch is stored as."""
    sizes = [len(bytes(event)) for event in batch.events]
    if not _LEAST_BYTES <= sum(sizes) <= COMPRESSED_BYTES:
        return codec.encode(batch)
    stream = zlib.compress(b"".join(map(bytes, batch.events)))
    compressed = CompressedBatch(
        run=batch.run,
        attempt=batch.attempt,
        rank=batch.rank,
        seq=batch.seq,
        previous=batch.previous,
        head=batch.head,
        sizes=tuple(sizes),
        digest=blake3.blake3(stream).hexdigest(),
        events=stream,
    )
    return codec.encode(compressed)


def decode(data: bytes, key: str) -> Batch:
    """Return the batch in the stored bytes of `key`. Raises UnknownSchema, CorruptObject."""
    stored: AnyBatch = codec.decode(data, AnyBatch, key)  # type: ignore[arg-type]
    if isinstance(stored, Batch):
        return stored
    if blake3.blake3(stored.events).hexdigest() != stored.digest:
        raise CorruptObject(f"checksum mismatch: batch {key} has compressed events that do not match their digest")
    ends = [*itertools.accumulate(stored.sizes, initial=0)]
    events = _expand(stored.events, ends[-1], key)
    return Batch(
        run=stored.run,
        attempt=stored.attempt,
        rank=stored.rank,
        seq=stored.seq,
        previous=stored.previous,
        head=stored.head,
        events=tuple(msgspec.Raw(events[start:end]) for start, end in itertools.pairwise(ends)),
    )


def _expand(compressed: bytes, size_bytes: int, key: str) -> bytes:
    """Return the `size_bytes` in a zlib stream, without more memory than that. Raises CorruptObject."""
    if size_bytes > COMPRESSED_BYTES:
        raise CorruptObject(f"batch {key} has compressed events of {size_bytes} bytes: the limit is {COMPRESSED_BYTES}")
    stream = zlib.decompressobj()
    try:
        # One byte more than expected: the stream is then read to its end, and a longer one is detected.
        events = stream.decompress(compressed, size_bytes + 1)
    except zlib.error as error:
        raise CorruptObject(f"batch {key} has compressed events that cannot be expanded: {error}") from error
    if len(events) != size_bytes or not stream.eof or stream.unused_data:
        raise CorruptObject(f"batch {key} has compressed events that do not end after {size_bytes} bytes")
    return events
