"""The append-only record of a run: batches of events, one chain per rank and attempt.

Batch n of a rank is published once, under its number. It contains the chain's head before its first and after its last
event. A missing, reordered, edited or foreign batch breaks the chain, which is an error.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

import msgspec

from m5ws.errors import CorruptObject, Fenced, NotFound, ObjectExists
from m5ws.records import codec
from m5ws.records.ledger import AnyEvent, AttemptEnded, AttemptStarted, Batch
from m5ws.repository import bindings, concurrency, gc_plans, publishing
from m5ws.repository.ledger import batches
from m5ws.repository.ledger.spool import chain, genesis
from m5ws.repository.repository import Repository

LAUNCHER = "launcher"
"""The chain of the process that supervises an attempt. Its first event fences all earlier attempts."""


def is_number(name: str) -> bool:
    """Return True if a name is of an attempt, a rank or a batch.

    `str.isdigit` alone accepts digits that `int` does not.
    """
    return name.isascii() and name.isdigit()


def _prefix(run: str, attempt: int, rank: str) -> str:
    return f"runs/{run}/ledger/{attempt:04d}/{rank}/"


class ChainWriter:
    """Appends batches to one chain, from its end in the store."""

    def __init__(self, repo: Repository, run: str, attempt: int, rank: str) -> None:
        self._repo = repo
        self._run, self._attempt, self._rank = run, attempt, rank
        self.head = genesis(run, attempt, rank)
        self.seq = 0
        self.events = 0
        for batch in read(repo, run, attempt, rank):
            self.head, self.seq = batch.head, batch.seq + 1
            self.events += len(batch.events)

    def append(self, events: Sequence[bytes], repair: Callable[[], object] | None = None) -> None:
        """Publish encoded events as the next batch. Raises Fenced if another writer was first.

        `repair` uploads the objects that the events name again, if gc has deleted them meanwhile.
        """
        if not events:
            return
        head = self.head
        for event in events:
            head = chain(head, event)
        batch = Batch(
            run=self._run,
            attempt=self._attempt,
            rank=self._rank,
            seq=self.seq,
            previous=self.head,
            head=head,
            events=tuple(msgspec.Raw(event) for event in events),
        )
        key = f"{_prefix(self._run, self._attempt, self._rank)}{self.seq:08d}"
        data = batches.encode(batch)

        def create() -> None:
            try:
                # Published from here on.
                self._repo.store.create(key, data)
            except ObjectExists as error:
                raise Fenced(f"{key} was written by another process") from error

        # Almost all batches name no object, and cost one request.
        if named := _named(events):
            publishing.publish(self._repo, lambda: named, create, repair=repair)
        else:
            create()
        self.head, self.seq, self.events = head, self.seq + 1, self.events + len(events)


def _named(events: Sequence[bytes]) -> set[bytes]:
    """Return the objects that events refer to: the observed environments."""
    started = (decode_event(event) for event in events if b"attempt-started" in event)
    return gc_plans.packed(event.observed for event in started if isinstance(event, AttemptStarted))


def read(
    repo: Repository,
    run: str,
    attempt: int,
    rank: str,
    after: Batch | None = None,
    stored: Callable[[bytes], object] = lambda _: None,
) -> Iterator[Batch]:
    """Yield a chain's batches, or those after `after`, each checked against the previous one.

    `stored` is called with the stored bytes of each batch before it is yielded. Raises CorruptObject if the chain is
    broken.
    """
    prefix = _prefix(run, attempt, rank)
    head = after.head if after else genesis(run, attempt, rank)
    seq = after.seq + 1 if after else 0
    present = {name for name in repo.store.names(prefix) if is_number(name)}
    numbers = (f"{number:08d}" for number in itertools.count(seq))
    keys = [f"{prefix}{number}" for number in itertools.takewhile(present.__contains__, numbers)]
    # Many callers need the first batch only. The others are fetched in parallel.
    contents = itertools.chain(map(repo.store.get, keys[:1]), concurrency.for_each(repo.store.get, keys[1:]))
    for key, data in zip(keys, contents, strict=True):
        batch = batches.decode(data, key)
        _check(batch, key, head)
        stored(data)
        head, seq = batch.head, seq + 1
        yield batch
    if any(name >= f"{seq:08d}" for name in present):
        raise CorruptObject(f"batch {prefix}{seq:08d} is missing, but later ones exist")


def fetch(repo: Repository, run: str, attempt: int, rank: str, seq: int) -> Batch:
    """Return one batch of a chain, good in itself. Raises NotFound, CorruptObject."""
    key = f"{_prefix(run, attempt, rank)}{seq:08d}"
    batch = batches.decode(repo.store.get(key), key)
    _check(batch, key, batch.previous)
    return batch


def read_newer(repo: Repository, run: str, attempt: int, rank: str, after: Batch | None) -> Iterator[Batch]:
    """Yield as `read`, for a caller that comes again and again: one request for each batch, and one for the next one.

    `read` lists all batches of the chain, whatever `after` is. A batch that is missing before later ones is the end.
    """
    head, seq = (after.head, after.seq + 1) if after else (genesis(run, attempt, rank), 0)
    while True:
        try:
            batch = fetch(repo, run, attempt, rank, seq)
        except NotFound:
            return
        _check(batch, f"{_prefix(run, attempt, rank)}{seq:08d}", head)
        head, seq = batch.head, seq + 1
        yield batch


def backwards(repo: Repository, run: str, attempt: int, rank: str) -> Iterator[Batch]:
    """Yield a chain's batches from its end, for callers that need only the end of a long chain.

    Each batch is checked by itself, not against the previous one. Raises CorruptObject if a batch is missing.
    """
    prefix = _prefix(run, attempt, rank)
    present = sorted(name for name in repo.store.names(prefix) if is_number(name))
    for seq, name in enumerate(present):
        if name != f"{seq:08d}":
            raise CorruptObject(f"batch {prefix}{seq:08d} is missing, but later ones exist")
    for seq in reversed(range(len(present))):
        yield fetch(repo, run, attempt, rank, seq)


def _check(batch: Batch, key: str, head: str) -> None:
    bindings.check(key, batch)
    if batch.previous != head:
        raise CorruptObject(f"batch {key} does not follow the batch before it")
    for event in batch.events:
        head = chain(head, bytes(event))
    if batch.head != head:
        raise CorruptObject(f"batch {key} was modified after publication: its events do not match its head")


def decode_event(event: bytes | msgspec.Raw) -> AnyEvent:
    """Return a decoded event. Raises UnknownSchema."""
    return codec.decode(bytes(event), AnyEvent, "ledger event")  # type: ignore[arg-type]


def events(repo: Repository, run: str, attempt: int, rank: str) -> list[AnyEvent]:
    """Return all events of one chain, in order."""
    return [decode_event(event) for batch in read(repo, run, attempt, rank) for event in batch.events]


def check_ends(repo: Repository, run: str, attempt: int) -> None:
    """Raise CorruptObject if a rank's chain does not end at the head in the attempt's last event."""
    ended = next((event for event in events(repo, run, attempt, LAUNCHER) if isinstance(event, AttemptEnded)), None)
    for rank, head in ended.heads.items() if ended is not None else ():
        chain_head = genesis(run, attempt, rank)
        for batch in read(repo, run, attempt, rank):
            chain_head = batch.head
        check_end(run, attempt, rank, head, chain_head)


def check_end(run: str, attempt: int, rank: str, head: str, stored: str) -> None:
    """Raise CorruptObject if a rank's chain does not end where the attempt's end has it."""
    if stored != head:
        raise CorruptObject(
            f"the ledger of rank {rank} in attempt {attempt} of run {run} does not end at its recorded head",
            hint="Events are missing at its end, or were edited. Run `m5ws fsck` to list all damage.",
        )


def attempts(repo: Repository, run: str) -> list[int]:
    """Return the numbers of a run's attempts, in order."""
    return [int(name) for name in repo.store.names(f"runs/{run}/ledger/") if is_number(name)]


def successor(repo: Repository, run: str, attempt: int) -> AttemptStarted | None:
    """Return the first event of the newest attempt after `attempt`, or None if there is none. One request if none."""
    newest = max(attempts(repo, run), default=0)
    if newest <= attempt:
        return None
    batch = next(read(repo, run, newest, LAUNCHER), None)
    first = decode_event(batch.events[0]) if batch is not None else None
    return first if isinstance(first, AttemptStarted) else None


def ranks(repo: Repository, run: str, attempt: int) -> list[str]:
    """Return the chains of an attempt: ranks by number, then the launcher."""
    keys = repo.store.names(f"runs/{run}/ledger/{attempt:04d}/")
    names = [name for name in keys if is_number(name) or name == LAUNCHER]
    return sorted(names, key=lambda name: (name == LAUNCHER, 0 if name == LAUNCHER else int(name)))
