"""A small run of two ranks with a checkpoint, its replay and a verdict, in a store in memory; and forgeries."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from m5ws.records import codec
from m5ws.records.checkpoint import Checkpoint
from m5ws.records.environment import Observed
from m5ws.records.ledger import (
    NODE,
    AttemptEnded,
    AttemptStarted,
    CheckpointPublished,
    Event,
    NodeStarted,
    Notice,
    RankEnded,
    RankStarted,
    State,
    Step,
)
from m5ws.records.run import LaunchSpec, Run
from m5ws.records.verdict import Verdict
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.chains import Chain
from m5ws.repository.ledger.spool import chain
from m5ws.repository.objects import write_parts
from m5ws.repository.references import checkpoints, runs
from m5ws.repository.repository import Repository
from tests.support.records import contents, planted
from tests.support.stores.memory_store import MemoryStore

RUN, REPLAY = "7c1d00000001", "7c1d00000002"
SAVED = 5
"""Number of each rank's events before the checkpoint."""


def made() -> Repository:
    """Return a store with both runs. The replay's ledger equals the original's, except for the name."""
    repo = Repository.create(MemoryStore())
    tree = planted.packed(repo, {b"train.py": b"print(1)"})
    snapshot = planted.publish(repo, planted.snapshot(tree))
    spec = LaunchSpec(command=("train.py",), nproc=2)
    run = Run(id=RUN, snapshot=snapshot, spec=spec, created_s=1.0)
    replay = Run(id=REPLAY, snapshot=snapshot, spec=spec, purpose="reproduce", reproduces=RUN, created_s=2.0)
    for record in (run, replay):
        runs.publish(repo, record)
        _train(repo, record)
    verdict = Verdict(run=RUN, replay=REPLAY, outcome="reproduced", compared={"quantities": 6}, created_s=3.0)
    runs.publish_verdict(repo, verdict)
    return repo


def _train(repo: Repository, run: Run) -> None:
    observed = repo.objects.put_record(Observed(facts={"python": "3.11.2"}))
    writer = planted.AttemptWriter(repo, run.id, 1)
    writer.append(NODE, AttemptStarted(time_s=1.0, attempt=1, host="h"))
    writer.append(NODE, NodeStarted(time_s=1.0, node=0, host="h", observed=observed))
    for rank in range(2):
        before: list[Event] = [RankStarted(time_s=2.0, rank=rank, world=2, pid=rank + 1)]
        before += [Step(time_s=2.0 + step, step=step, quantities={"loss": (1 / step).hex()}) for step in (1, 2, 3)]
        before.append(State(time_s=6.0, step=3, generators={"torch": f"{rank:064x}"}))
        writer.append(str(rank), *before[:2])
        writer.append(str(rank), *before[2:])
        assert len(before) == SAVED
    blob = write_parts(repo.objects, [("w", b"weights" * 100)])["w"][0]
    content = repo.objects.put_record(contents.content(repo.objects, world=2, blobs={"w": blob}))
    heads = dict(writer.heads.by_rank)
    checkpoint = Checkpoint(run=run.id, snapshot=run.snapshot, attempt=1, step=3, content=content, ledger=heads)
    digest, name = checkpoints.publish(repo, checkpoint), checkpoints.name(3, 1)
    published = CheckpointPublished(time_s=7.0, step=3, name=name, checkpoint=digest, content=content)
    writer.append("0", published, RankEnded(time_s=8.0, rank=0))
    writer.append("1", RankEnded(time_s=8.0, rank=1))
    noticed = Notice(time_s=9.0, kind="environment", message="another library")
    writer.append(NODE, noticed, AttemptEnded(time_s=10.0, outcome="finished", exit_code=0))


@contextmanager
def undone(repo: Repository) -> Iterator[None]:
    """Undo all changes to a store at the end."""
    assert isinstance(repo.store, MemoryStore)
    kept = dict(repo.store.objects)
    yield
    repo.store.objects.clear()
    repo.store.objects.update(kept)


Batches = list[list[bytes]]


def batches(repo: Repository, run: str, origin: str) -> Batches:
    """Return the events of an origin by batch, as stored bytes."""
    return [
        [bytes(event) for _, event in ledger.stored_events(batch, (origin,))] for batch in ledger.read(repo, run, 1)
    ]


def write(repo: Repository, run: str, origin: str, events_by_batch: Batches, *, forged: bool) -> None:
    """Replace the events of an origin, with the old heads of batches, or, if `forged`, with a consistent new chain.

    A batch without events is left out.
    """
    prefix, before = f"runs/{run}/ledger/0001/0/", list(ledger.read(repo, run, 1))
    for name in repo.store.names(prefix):
        repo.store.delete(prefix + name)
    seq, head = 0, ledger.start_of(run, 1, 0)
    for old, events in zip(before, events_by_batch, strict=True):
        by_origin: dict[str, list[bytes]] = {origin: events} if events else {}
        for name, event in ledger.stored_events(old):
            if name != origin:
                by_origin.setdefault(name, []).append(bytes(event))
        if not by_origin:
            continue
        raw = ledger.encode_events(by_origin)
        batch = msgspec.structs.replace(old, seq=seq, previous=head, head=chain(head, bytes(raw)), events=raw)
        if not forged:
            batch = msgspec.structs.replace(batch, previous=before[seq].previous, head=before[seq].head)
        repo.store.create(f"{prefix}{seq:08d}", codec.encode(batch))
        seq, head = seq + 1, batch.head


def forge_end(repo: Repository, run: str) -> None:
    """Make the attempt's last event have the present heads of its ranks, in a consistent chain."""
    events_by_batch = batches(repo, run, NODE)
    ended = ledger.decode_event(events_by_batch[-1][-1])
    assert isinstance(ended, AttemptEnded)
    heads = Chain(run, 1).follow(repo).heads.by_rank
    events_by_batch[-1][-1] = codec.encode(msgspec.structs.replace(ended, heads=heads))
    write(repo, run, NODE, events_by_batch, forged=True)


def _place(events_by_batch: Batches, number: int) -> tuple[int, int]:
    for seq, events in enumerate(events_by_batch):
        if number < len(events):
            return seq, number
        number -= len(events)
    raise IndexError(number)


def edited(events_by_batch: Batches, number: int) -> None:
    """Change one event as little as possible: by a microsecond of its time."""
    seq, place = _place(events_by_batch, number)
    event = ledger.decode_event(events_by_batch[seq][place])
    events_by_batch[seq][place] = codec.encode(msgspec.structs.replace(event, time_s=event.time_s + 1e-6))


def dropped(events_by_batch: Batches, number: int) -> None:
    seq, place = _place(events_by_batch, number)
    del events_by_batch[seq][place]


def reordered(events_by_batch: Batches, number: int) -> None:
    """Swap an event with the next event, also across batches; the last event with the first."""
    seq, place = _place(events_by_batch, number)
    after, there = _place(events_by_batch, (number + 1) % sum(map(len, events_by_batch)))
    events_by_batch[seq][place], events_by_batch[after][there] = (
        events_by_batch[after][there],
        events_by_batch[seq][place],
    )


def replayed(events_by_batch: Batches, number: int) -> None:
    """Repeat an event at the end."""
    seq, place = _place(events_by_batch, number)
    last = [events for events in events_by_batch if events][-1]
    last.append(events_by_batch[seq][place])


HARMS: dict[str, Callable[[Batches, int], None]] = {
    harm.__name__: harm for harm in (edited, dropped, reordered, replayed)
}
EVENTS = {NODE: 4, "0": 7, "1": 6}
