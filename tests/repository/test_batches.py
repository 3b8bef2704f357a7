"""Stored batches: large batches are compressed, every reader gets the same events, and every damage is detected."""

import random
import resource
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import blake3
import msgspec
import pytest

from m5ws.errors import CorruptObject, M5Error, UnknownSchema
from m5ws.records import codec
from m5ws.records.ledger import COMPRESSED_BYTES, AnyEvent, Batch, CompressedBatch, State, Step
from m5ws.repository.fsck import fsck
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.chains import Chain
from m5ws.repository.ledger.spool import chain
from m5ws.repository.repository import Repository
from tests.support.records import planted
from tests.support.stores.memory_store import MemoryStore

RUN = "a" * 12
KEY = f"runs/{RUN}/ledger/0001/0/00000000"


def _state(step: int, tensors: int) -> State:
    draw = random.Random(step)
    return State(
        step=step, tensors={f"model.layers.{n}.weight": f"{draw.getrandbits(64):016x}" for n in range(tensors)}
    )


def _step(step: int) -> Step:
    return Step(step=step, quantities={"loss": "0x1p+0"})


def _batch(*events: AnyEvent) -> Batch:
    previous, stored = ledger.start_of(RUN, 1, 0), ledger.encode_events({"0": [*map(codec.encode, events)]})
    head = chain(previous, bytes(stored))
    return Batch(run=RUN, attempt=1, node=0, seq=0, previous=previous, head=head, events=stored)


def _compressed(**changes: Any) -> CompressedBatch:
    """Return the stored record of a batch with three events, with changed fields."""
    stored = codec.decode(ledger.encode_batch(_batch(_state(1, 500), _step(1), _state(2, 500))), CompressedBatch)
    return msgspec.structs.replace(stored, **changes)


def _with_stream(stream: bytes, size_bytes: int | None = None) -> bytes:
    digest = blake3.blake3(stream).hexdigest()
    return codec.encode(_compressed(events=stream, digest=digest, size_bytes=size_bytes or _compressed().size_bytes))


@pytest.mark.parametrize(("tensors", "kind"), [(0, Batch), (100, Batch), (500, CompressedBatch)])
def test_a_large_batch_is_compressed_and_a_small_batch_is_not(
    tensors: int, kind: type[Batch | CompressedBatch]
) -> None:
    batch = _batch(_step(1), _state(1, tensors), _step(2))
    stored = ledger.encode_batch(batch)
    assert isinstance(codec.decode(stored, kind), kind)
    decoded = ledger.decode_batch(stored, KEY)
    assert decoded == batch
    assert [event for _, event in ledger.decode(decoded)] == [_step(1), _state(1, tensors), _step(2)]


def test_a_state_of_10000_parameters_with_adam_takes_half_a_mebibyte() -> None:
    draw = random.Random(1)
    values = {kind: [f"{draw.getrandbits(64):016x}" for _ in range(10_000)] for kind in ("weight", "mean", "square")}
    values["step"] = ["0123456789abcdef"] * 10_000
    tensors = {f"layers.{n // 5}.{n % 5}.{kind}": all_of[n] for kind, all_of in values.items() for n in range(10_000)}
    assert len(ledger.encode_batch(_batch(State(step=1, tensors=tensors)))) <= 2**19


def test_a_batch_beyond_the_limit_is_not_compressed() -> None:
    batch = _batch(State(step=1, tensors={"x": "0" * COMPRESSED_BYTES}))
    assert ledger.encode_batch(batch) == codec.encode(batch)


def test_a_chain_has_batches_of_both_kinds(repo: Repository) -> None:
    """The first batch is large and is not compressed."""
    planted.run(repo, RUN)
    repo.store.create(KEY, codec.encode(_batch(_state(1, 500), _step(1))))
    planted.append(repo, RUN, 1, "0", _step(2))
    planted.append(repo, RUN, 1, "0", _state(3, 500), _step(3))
    events = [_state(1, 500), _step(1), _step(2), _state(3, 500), _step(3)]
    stored = [repo.store.get(f"{KEY[:-1]}{seq}") for seq in range(3)]
    assert [b"ledger/2" in data for data in stored] == [False, False, True]
    assert ledger.events(repo, RUN, 1, "0") == events
    assert [ledger.fetch(repo, RUN, 1, 0, seq).seq for seq in range(3)] == [0, 1, 2]
    assert [batch.seq for batch in ledger.backwards(repo, RUN, 1)] == [2, 1, 0]
    followed = Chain(RUN, 1).follow(repo)
    assert (followed.batches, followed.order.events) == (3, 5)
    assert not [damage for damage in fsck.check(repo).damage if damage.kind == "broken-chain"]


def test_every_flipped_bit_and_every_truncation_is_detected() -> None:
    stored = ledger.encode_batch(_batch(_state(1, 500), _step(1)))
    draw = random.Random(7)
    bits = {*range(3200), *draw.sample(range(8 * len(stored)), 500), *range(8 * len(stored) - 400, 8 * len(stored))}
    damaged = [_flipped(stored, bit) for bit in sorted(bits)]
    damaged += [stored[:size] for size in draw.sample(range(len(stored)), 100)] + [stored + b"\0"]
    for data in damaged:
        with pytest.raises(M5Error):
            _read(data)


def _flipped(data: bytes, bit: int) -> bytes:
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def _read(data: bytes) -> list[AnyEvent]:
    repo = Repository.create(MemoryStore())
    repo.store.create(KEY, data)
    return ledger.events(repo, RUN, 1, "0")


_EVENTS = zlib.decompress(_compressed().events)


@cache
def _bomb() -> bytes:
    return zlib.compress(bytes(16 * COMPRESSED_BYTES), 9)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "a bomb": lambda: _with_stream(_bomb()),
    "a bomb that claims its limit": lambda: _with_stream(_bomb(), COMPRESSED_BYTES),
    "a bomb that claims its size": lambda: _with_stream(_bomb(), 16 * COMPRESSED_BYTES),
    "an empty stream": lambda: _with_stream(b""),
    "no stream": lambda: _with_stream(b"events"),
    "a stream of nothing": lambda: _with_stream(zlib.compress(b"")),
    "trailing bytes": lambda: _with_stream(zlib.compress(_EVENTS) + b"\0"),
    "two streams": lambda: _with_stream(zlib.compress(_EVENTS) * 2),
    "a truncated stream": lambda: _with_stream(zlib.compress(_EVENTS)[:-1]),
    "a stream without a checksum": lambda: _with_stream(zlib.compress(_EVENTS)[:-4]),
    "a gzip stream": lambda: _with_stream(zlib.compress(_EVENTS, wbits=31)),
    "a longer stream": lambda: _with_stream(zlib.compress(_EVENTS + b"\0")),
    "a shorter stream": lambda: _with_stream(zlib.compress(_EVENTS[:-1])),
    "another digest": lambda: codec.encode(_compressed(digest="0" * 64)),
    "no size": lambda: codec.encode(_compressed(size_bytes=0)),
    "a negative size": lambda: codec.encode(_compressed(size_bytes=-1)),
}


@pytest.mark.parametrize("stored", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_stream_is_corrupt_and_takes_bounded_memory(stored: Callable[[], bytes]) -> None:
    data = stored()
    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 4 * COMPRESSED_BYTES, before[1]))
    try:
        with pytest.raises(CorruptObject) as refused:
            ledger.decode_batch(data, KEY)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert KEY in str(refused.value)


@pytest.mark.parametrize(
    "events",
    [b"\xc0", b"\x93\x01\x02\x03", b"\x81\xa50-../\x90", b"\x81\xa1a\x90", b"\x81\xa202\x90", b"\x81\xa10\x01"],
)
def test_events_that_are_no_map_of_origins_are_corrupt(repo: Repository, events: bytes) -> None:
    start = ledger.start_of(RUN, 1, 0)
    hostile = msgspec.structs.replace(_batch(), head=chain(start, events), events=msgspec.Raw(events))
    repo.store.create(KEY, codec.encode(hostile))
    with pytest.raises(CorruptObject, match="cannot be decoded"):
        ledger.events(repo, RUN, 1, "0")


def test_an_older_build_reports_an_unknown_type() -> None:
    with pytest.raises(UnknownSchema, match="ledger/1"):
        codec.decode(codec.encode(_compressed()), Batch, KEY)
