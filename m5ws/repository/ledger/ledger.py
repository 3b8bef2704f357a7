"""The append-only record of a run: batches of events, one chain per node and attempt.

Batch n of a node is published once, under its number. It contains the chain's head before and after it, and events of
the node and its ranks, each origin's in order. A missing, reordered, edited or foreign batch breaks the chain, which is
an error.

A large batch is stored compressed, and a small batch as it is (docs/format.md). A compressed batch has the same run,
number and heads in the clear. So both kinds are checked in the same way, and readers of a ledger see `Batch` alone.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence

import blake3
import msgspec

from m5ws.errors import CorruptObject, Fenced, NotFound, ObjectExists
from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.records.ledger import (
    COMPRESSED_BYTES,
    NODE,
    AnyBatch,
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    Batch,
    CheckpointPublished,
    CompressedBatch,
    NodeStarted,
    Notice,
    Origin,
    OutputsStored,
)
from m5ws.repository import bindings, concurrency, gc_plans, publishing
from m5ws.repository.ledger.spool import chain, genesis
from m5ws.repository.repository import Repository

LATE = (Notice, CheckpointPublished, OutputsStored)
"""Kinds of events that may follow the end of an attempt."""
_LEAST_BYTES = 16 * 2**10
"""Smaller batches, which are usual, stay readable and cost no time (docs/design/0025-compressed-batches.md)."""
_by_origin = msgspec.msgpack.Decoder(dict[Origin, tuple[msgspec.Raw, ...]])


def start_of(run: str, attempt: int, node: int) -> Digest:
    """Return the head of a node's chain before its first batch."""
    return genesis(run, attempt, f"{NODE}/{node}")


def _prefix(run: str, attempt: int, node: int) -> str:
    return f"runs/{run}/ledger/{attempt:04d}/{node}/"


class ChainWriter:
    """Appends batches to the chain of a node, from its end in the store. `counts` has its events by origin.

    A chain that `is_new` is not read: if it exists, the first batch is refused.
    """

    def __init__(self, repo: Repository, run: str, attempt: int, node: int = 0, *, is_new: bool = False) -> None:
        self._repo = repo
        self._run, self._attempt, self._node = run, attempt, node
        self.head = start_of(run, attempt, node)
        self.seq = 0
        self.counts: Counter[str] = Counter()
        for batch in () if is_new else read(repo, run, attempt, node):
            self._add(batch)

    def append(self, events: Mapping[str, Sequence[bytes]], repair: Callable[[], object] | None = None) -> None:
        """Publish encoded events by origin as the next batch. Raises Fenced if another writer was first.

        `repair` uploads the objects that the events name again, if gc has deleted them meanwhile.
        """
        events = {origin: each for origin, each in events.items() if each}
        if not events:
            return
        encoded = encode_events(events)
        batch = Batch(
            run=self._run,
            attempt=self._attempt,
            node=self._node,
            seq=self.seq,
            previous=self.head,
            head=chain(self.head, bytes(encoded)),
            events=encoded,
        )
        key = f"{_prefix(self._run, self._attempt, self._node)}{self.seq:08d}"
        data = encode_batch(batch)

        def create() -> None:
            try:
                # Published from here on.
                self._repo.store.create(key, data)
            except ObjectExists as error:
                raise Fenced(f"{key} was written by another process") from error

        # Almost all batches name no object, and cost one request. The ledger of a removed run takes its end.
        if named := _named(events.get(NODE, ())):
            publishing.publish(self._repo, lambda: named, create, run=None, repair=repair)
        else:
            create()
        self._add(batch)

    def _add(self, batch: Batch) -> None:
        self.head, self.seq = batch.head, batch.seq + 1
        self.counts.update(origin for origin, _ in stored_events(batch))


def _named(events: Sequence[bytes]) -> set[bytes]:
    """Return the objects that a node's own events refer to: the observed environments."""
    started = (decode_event(event) for event in events if b"node-started" in event)
    return gc_plans.packed(event.observed for event in started if isinstance(event, NodeStarted))


def read(
    repo: Repository, run: str, attempt: int, node: int = 0, stored: Callable[[bytes], object] = lambda _: None
) -> Iterator[Batch]:
    """Yield a chain's batches, each checked against the previous batch.

    `stored` is called with the stored bytes of each batch before it is yielded. Raises CorruptObject if the chain is
    broken.
    """
    prefix = _prefix(run, attempt, node)
    head, seq = start_of(run, attempt, node), 0
    present = {name for name in repo.store.names(prefix) if bindings.is_number(name)}
    numbers = (f"{number:08d}" for number in itertools.count(seq))
    keys = [f"{prefix}{number}" for number in itertools.takewhile(present.__contains__, numbers)]
    # Many callers need the first batches only. The other batches are fetched in parallel.
    contents = itertools.chain(map(repo.store.get, keys[:2]), concurrency.for_each(repo.store.get, keys[2:]))
    for key, data in zip(keys, contents, strict=True):
        batch = decode_batch(data, key)
        _check(batch, key, head)
        stored(data)
        head, seq = batch.head, seq + 1
        yield batch
    if any(name >= f"{seq:08d}" for name in present):
        raise CorruptObject(f"batch {prefix}{seq:08d} is missing, but later batches exist")


def fetch(repo: Repository, run: str, attempt: int, node: int, seq: int) -> Batch:
    """Return one batch of a chain, checked by itself. Raises NotFound, CorruptObject."""
    key = f"{_prefix(run, attempt, node)}{seq:08d}"
    batch = decode_batch(repo.store.get(key), key)
    _check(batch, key, batch.previous)
    return batch


def read_newer(repo: Repository, run: str, attempt: int, node: int, after: Batch) -> Iterator[Batch]:
    """Yield the batches after a batch, for a caller that comes again and again: a request for each, and for the next.

    `read` lists all batches of the chain. A batch that is missing before later batches is the end.
    """
    head, seq = after.head, after.seq + 1
    while True:
        try:
            batch = fetch(repo, run, attempt, node, seq)
        except NotFound:
            return
        _check(batch, f"{_prefix(run, attempt, node)}{seq:08d}", head)
        head, seq = batch.head, seq + 1
        yield batch


def backwards(repo: Repository, run: str, attempt: int, node: int = 0) -> Iterator[Batch]:
    """Yield a chain's batches from its end, for callers that need only the end of a long chain.

    Each batch is checked by itself, not against the previous batch. Raises CorruptObject if a batch is missing.
    """
    prefix = _prefix(run, attempt, node)
    present = sorted(name for name in repo.store.names(prefix) if bindings.is_number(name))
    for seq, name in enumerate(present):
        if name != f"{seq:08d}":
            raise CorruptObject(f"batch {prefix}{seq:08d} is missing, but later batches exist")
    for seq in reversed(range(len(present))):
        yield fetch(repo, run, attempt, node, seq)


def _check(batch: Batch, key: str, head: str) -> None:
    bindings.check(key, batch)
    if batch.previous != head:
        raise CorruptObject(f"batch {key} does not follow the batch before it")
    if batch.head != chain(head, bytes(batch.events)):
        raise CorruptObject(f"batch {key} was modified after publication: its events do not match its head")


def decode_event(event: bytes | msgspec.Raw) -> AnyEvent:
    """Return a decoded event. Raises UnknownSchema."""
    return codec.decode(bytes(event), AnyEvent, "ledger event")  # type: ignore[arg-type]


def decode(batch: Batch, origins: Container[str] | None = None) -> Iterator[tuple[str, AnyEvent]]:
    """Yield the events of a batch with their origins, in the order of each origin; the events of `origins` alone if
    given.

    Raises CorruptObject, UnknownSchema.
    """
    yield from ((origin, decode_event(event)) for origin, event in stored_events(batch, origins))


def read_events(
    repo: Repository, run: str, attempt: int, origins: Container[str] | None = None
) -> Iterator[tuple[str, AnyEvent]]:
    """Yield the events of an attempt with their origins, as `decode`, node by node."""
    for node in nodes(repo, run, attempt):
        for batch in read(repo, run, attempt, node):
            yield from decode(batch, origins)


def events(repo: Repository, run: str, attempt: int, origin: str) -> list[AnyEvent]:
    """Return all events of one origin, in order."""
    return [event for _, event in read_events(repo, run, attempt, (origin,))]


def published(repo: Repository, run: str, attempt: int) -> Iterator[CheckpointPublished | OutputsStored]:
    """Yield the events of an attempt about checkpoints and output files. Rank 0 has them, or the leader."""
    for _, event in read_events(repo, run, attempt, ("0", NODE)):
        if isinstance(event, CheckpointPublished | OutputsStored):
            yield event


def started(repo: Repository, run: str, attempt: int) -> AttemptStarted | None:
    """Return the event that begins an attempt, which is the first of its leader; None if it has not begun."""
    event = first(repo, run, attempt, 0)
    return event if isinstance(event, AttemptStarted) else None


def first(repo: Repository, run: str, attempt: int, node: int) -> AnyEvent | None:
    """Return the first event of a node; None if it has not begun."""
    batch = next(read(repo, run, attempt, node), None)
    event = next(decode(batch), None) if batch is not None else None
    return event[1] if event is not None else None


def node_starts(repo: Repository, run: str, attempt: int) -> Iterator[NodeStarted]:
    """Yield the start of each node of an attempt that has one. A ledger is read no further than needed."""
    for node in nodes(repo, run, attempt):
        own = (event for batch in read(repo, run, attempt, node) for _, event in decode(batch, (NODE,)))
        yield from itertools.islice((event for event in own if isinstance(event, NodeStarted)), 1)


def ended(repo: Repository, run: str, attempt: int) -> AttemptEnded | None:
    """Return the last end of an attempt, or None. The ledger is read from its end, and no further than needed."""
    for batch in backwards(repo, run, attempt):
        for _, event in reversed([*decode(batch)]):
            if isinstance(event, AttemptEnded):
                return event
            if not isinstance(event, LATE):
                return None
    return None


def newest_s(repo: Repository, run: str, attempt: int) -> float:
    """Return the time of the newest batch of an attempt, by the store's clock; 0.0 without one."""
    stats = repo.store.list(f"runs/{run}/ledger/{attempt:04d}/")
    return max((stat.modified_s for stat in stats), default=0.0)


def began_s(repo: Repository, run: str, attempt: int) -> float:
    """Return the time of the first batch of an attempt, by the store's clock; 0.0 without one.

    Events have the times of their machines.
    """
    stat = repo.store.stat(f"{_prefix(run, attempt, 0)}{0:08d}")
    return stat.modified_s if stat is not None else 0.0


def check_heads(
    run: str, attempt: int, ended: AttemptEnded, stored: Mapping[str, Digest], ranks: Container[str] | None = None
) -> None:
    """Raise CorruptObject unless each rank's events end at its head in the attempt's last event; `ranks` alone if
    given.
    """
    recorded = {rank: head for rank, head in ended.heads.items() if ranks is None or rank in ranks}
    for rank in sorted({*recorded, *stored} if ended.is_whole else recorded):
        start = genesis(run, attempt, rank)
        if recorded.get(rank, start) != stored.get(rank, start):
            raise CorruptObject(
                f"the events of rank {rank} in attempt {attempt} of run {run} do not end at their recorded head",
                hint="Events are missing, or were edited. Run `m5ws fsck` to list all damage.",
            )


def attempts(repo: Repository, run: str) -> list[int]:
    """Return the numbers of a run's attempts, in order."""
    return [int(name) for name in repo.store.names(f"runs/{run}/ledger/") if bindings.is_number(name)]


def nodes(repo: Repository, run: str, attempt: int) -> list[int]:
    """Return the numbers of the nodes with a chain in an attempt, in order."""
    names = filter(bindings.is_number, repo.store.names(f"runs/{run}/ledger/{attempt:04d}/"))
    return sorted(int(name) for name in names if name == str(int(name)))


def successor(repo: Repository, run: str, attempt: int) -> AttemptStarted | None:
    """Return the first event of the newest attempt after `attempt`, or None if there is none. One request if none."""
    newest = max(attempts(repo, run), default=0)
    return started(repo, run, newest) if newest > attempt else None


def encode_events(events: Mapping[str, Sequence[bytes]]) -> msgspec.Raw:
    """Return encoded events by origin as the map of a batch."""
    return msgspec.Raw(codec.encode_plain({origin: [*map(msgspec.Raw, each)] for origin, each in events.items()}))


def stored_events(batch: Batch, origins: Container[str] | None = None) -> Iterator[tuple[str, msgspec.Raw]]:
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


def encode_batch(batch: Batch) -> bytes:
    """Return the bytes that a batch is stored as."""
    size_bytes = len(bytes(batch.events))
    if not _LEAST_BYTES <= size_bytes <= COMPRESSED_BYTES:
        return codec.encode(batch)
    stream = codec.compress(bytes(batch.events))
    fields = msgspec.structs.asdict(batch) | {"events": stream}
    digest = blake3.blake3(stream).hexdigest()
    return codec.encode(CompressedBatch(size_bytes=size_bytes, digest=digest, **fields))


def decode_batch(data: bytes, key: str) -> Batch:
    """Return the batch in the stored bytes of `key`. Raises UnknownSchema, CorruptObject."""
    stored: AnyBatch = codec.decode(data, AnyBatch, key)  # type: ignore[arg-type]
    if isinstance(stored, Batch):
        return stored
    if blake3.blake3(stored.events).hexdigest() != stored.digest:
        raise CorruptObject(f"checksum mismatch: batch {key} has compressed events that do not match their digest")
    events = codec.expand(stored.events, stored.size_bytes, f"the compressed events of batch {key}")
    fields = msgspec.structs.asdict(stored) | {"events": msgspec.Raw(events)}
    del fields["size_bytes"], fields["digest"]
    return Batch(**fields)
