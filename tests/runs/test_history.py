"""Histories that stay in the ledger: equal to all events held in memory, at the cost of two batches of a chain."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from m5ws.errors import CorruptObject
from m5ws.records import codec
from m5ws.records.ledger import NODE, AttemptEnded, Batch, RankStarted, State, Step
from m5ws.repository.fsck import fsck
from m5ws.repository.ledger import ledger, summaries
from m5ws.repository.references import run_index
from m5ws.repository.repository import Repository
from m5ws.reproduce import compare, gaps
from m5ws.reproduce.compare import Comparison
from m5ws.runs import history, recorded_steps
from m5ws.runs.history import History
from m5ws.store.local import LocalStore
from tests.support.records import planted
from tests.support.stores.counting_store import CountingStore

RUN, OTHER = "a" * 12, "b" * 12


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository.create(LocalStore(tmp_path / "store", durable=False))


def _step(step: int, rank: int, attempt: int = 1) -> Step:
    return Step(step=step, quantities={"loss": f"0x1.{step:04x}{rank}{attempt}p+0"}, batch=f"{step:064x}")


def _attempt(
    repo: Repository, run: str, steps: range, attempt: int = 1, *, ranks: int = 2, batch: int = 4, states: int = 3
) -> None:
    """Publish an attempt that resumes before `steps`; states of every third step come one batch late."""
    resume = f"{steps[0] - 1:010d}-{attempt - 1:04d}" if steps[0] > 1 else None
    planted.begin(repo, run, attempt, resume=resume)
    writer = planted.AttemptWriter(repo, run, attempt)
    for rank in range(ranks):
        late = list[State]()
        writer.append(str(rank), RankStarted(rank=rank, world=ranks, pid=1))
        for begin in range(0, len(steps), batch):
            part = steps[begin : begin + batch]
            events = [*late, *(_step(step, rank, attempt) for step in part)]
            late = [State(step=step, generators={"g": f"{step}{attempt}"}) for step in part if step % states == 0]
            writer.append(str(rank), *events)
        writer.append(str(rank), State(step=1, restored=True), *late)
    writer.append(NODE, AttemptEnded(outcome="finished", exit_code=0))


def _held(repo: Repository, run: str, *, folded: bool = True) -> tuple[dict[int, dict[int, Step]], ...]:
    """Return steps and states of a run by rank, all in memory: the rule in its simplest form."""
    found: tuple[dict[int, dict[int, Step]], ...] = ({}, {})
    for attempt in ledger.attempts(repo, run):
        start = next(iter(ledger.events(repo, run, attempt, NODE)))
        begin = int(start.resume.split("-")[0]) if start.resume else 0  # type: ignore[union-attr]
        for values in (*found[0].values(), *found[1].values()) if folded else ():
            for number in [number for number in values if number > begin]:
                del values[number]
        for rank, event in ledger.read_events(repo, run, attempt):
            if recorded_steps.counts(event):
                found[isinstance(event, State)].setdefault(int(rank), {})[event.step] = event  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("begins", [(1,), (1, 8), (1, 8, 5), (1, 12, 20)])
def test_a_history_equals_the_events_held_in_memory(repo: Repository, begins: tuple[int, ...], folded: bool) -> None:
    planted.run(repo, RUN)
    for attempt, begin in enumerate(begins, 1):
        _attempt(repo, RUN, range(begin, begin + 14 - attempt), attempt)
    done, (steps, states) = history.load(repo, RUN, folded=folded), _held(repo, RUN, folded=folded)
    for found, wanted in ((done.steps, steps), (done.states, states)):
        assert {rank: {**series} for rank, series in found.items()} == wanted
        assert {rank: recorded_steps.last(series) for rank, series in found.items()} == {
            rank: max(series) for rank, series in wanted.items()
        }
    for first, end in ((0, 99), (3, 9), (9, 3)):
        part = done.within(first, end).steps[1]
        assert {**part} == {step: event for step, event in steps[1].items() if first < step <= end}


def test_a_history_holds_two_batches_of_a_chain_of_any_length(repo: Repository) -> None:
    held = []
    for run, steps in ((RUN, 40), (OTHER, 400)):
        planted.run(repo, run)
        _attempt(repo, run, range(1, steps + 1))
        done = history.load(repo, run)
        assert [event.step for event in done.steps[1].values()] == [*range(1, steps + 1)]
        (part,) = done.steps[1].parts  # type: ignore[attr-defined]
        held.append(sum(map(len, part.chain._held.values())))
    assert held[0] == held[1] <= 2 * 6


def test_reading_steps_in_order_reads_each_batch_once(repo: Repository) -> None:
    planted.run(repo, RUN)
    _attempt(repo, RUN, range(1, 101))
    counting = CountingStore(repo.store)
    done = history.load(Repository.open(counting), RUN)
    counting.gets.clear()
    for step in range(1, 101):
        for rank in (0, 1):
            assert done.steps[rank][step].step == step
    assert max(Counter(counting.gets).values()) == 1


def test_a_batch_exchanged_after_its_check_is_refused(repo: Repository) -> None:
    planted.run(repo, RUN)
    _attempt(repo, RUN, range(1, 20))
    done = history.load(repo, RUN)
    key = f"runs/{RUN}/ledger/0001/0/00000003"
    batch = codec.decode(repo.store.get(key), Batch)
    planted.run(repo, OTHER)
    planted.append(repo, OTHER, 1, "0", _step(5, 7))
    other = codec.decode(repo.store.get(f"runs/{OTHER}/ledger/0001/0/00000000"), Batch)
    repo.store.delete(key)
    repo.store.create(
        key,
        codec.encode(
            Batch(run=RUN, attempt=1, node=0, seq=3, previous=other.previous, head=other.head, events=other.events)
        ),
    )
    assert batch.head != other.head
    with pytest.raises(CorruptObject):
        _ = done.steps[0][5]


@pytest.mark.parametrize("heads", [("0",), ("0", "1", "2")], ids=["events without a head", "a head without events"])
def test_ranks_that_do_not_end_at_their_recorded_heads_are_an_error(repo: Repository, heads: tuple[str, ...]) -> None:
    planted.run(repo, RUN)
    planted.begin(repo, RUN)
    writer = planted.AttemptWriter(repo, RUN, 1)
    for rank in (0, 1):
        writer.append(str(rank), _step(1, rank))
    recorded = {rank: writer.heads.by_rank.get(rank, "0" * 64) for rank in heads}
    writer.append(NODE, AttemptEnded(outcome="finished", exit_code=0, heads=recorded))
    with pytest.raises(CorruptObject, match=r"rank [12] "):
        history.load(repo, RUN)
    assert "broken-chain" in {damage.kind for damage in fsck.check(repo).damage}


def _cut(repo: Repository) -> None:
    """Remove the batch with the end of an attempt that has a summary."""
    origins, length = summaries.read(repo, RUN, 1)
    run_index.write_ended(repo, RUN, 1, origins, length)
    repo.store.delete(f"runs/{RUN}/ledger/0001/0/{length - 1:08d}")


_END = AttemptEnded(outcome="finished", exit_code=0)
_DAMAGE: dict[str, Callable[[Repository], None]] = {
    "a step after the end": lambda repo: planted.append(repo, RUN, 1, "0", _step(9, 0)),
    "a second end": lambda repo: planted.append(repo, RUN, 1, NODE, _END),
    "a missing attempt": lambda repo: planted.begin(repo, RUN, 3),
    "an attempt without a start": lambda repo: planted.append(repo, RUN, 2, "0", _step(9, 0)),
    "an end that was cut off": _cut,
}


@pytest.mark.parametrize("damage", _DAMAGE)
def test_a_ledger_in_an_impossible_order_has_no_history(repo: Repository, damage: str) -> None:
    planted.run(repo, RUN)
    _attempt(repo, RUN, range(1, 5))
    assert history.load(repo, RUN).outcome == "finished"
    _DAMAGE[damage](repo)
    with pytest.raises(CorruptObject):
        history.load(repo, RUN)
    assert not fsck.check(repo).clean


# --- comparisons ----------------------------------------------------------------------------------------------------


def _events(repo: Repository, run: str) -> list[tuple[str, object]]:
    return [(rank, event) for rank in ("0", "1") for event in ledger.events(repo, run, 1, rank)]


@pytest.mark.parametrize("differs", [None, 1, 30, 60])
def test_a_comparison_by_ledger_equals_a_comparison_in_memory(repo: Repository, differs: int | None) -> None:
    for run in (RUN, OTHER):
        planted.run(repo, run)
    _attempt(repo, RUN, range(1, 61))
    planted.begin(repo, OTHER)
    for rank in range(2):
        told = [_step(step, rank, 1 if differs is None or step < differs else 2) for step in range(1, 61)]
        planted.append(repo, OTHER, 1, str(rank), *told)
    steps, states = _held(repo, RUN)
    held = Comparison(History(steps=steps, states=states, outcome="finished"))  # type: ignore[arg-type]
    streamed = Comparison(history.load(repo, RUN), (repo, OTHER))
    for chain, event in _events(repo, OTHER):
        for comparison in (held, streamed):
            comparison.feed(chain, event)  # type: ignore[arg-type]
    whole = compare.compare_histories(history.load(repo, RUN), history.load(repo, OTHER))
    for found in (streamed, whole):
        assert found.first() == held.first() and (held.first() is None) == (differs is None)
        assert found.count_compared() == held.count_compared() and found.equal == held.equal
        assert (gaps.missing(found), gaps.only_in_original(found)) == (gaps.missing(held), gaps.only_in_original(held))


def test_old_steps_of_a_live_run_are_read_from_its_ledger(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recorded_steps.RECENT, Step, 8)
    planted.run(repo, RUN)
    _attempt(repo, RUN, range(1, 61))
    comparison = Comparison(history.load(repo, RUN), (repo, RUN))
    for rank, event in _events(repo, RUN):
        comparison.feed(rank, event)  # type: ignore[arg-type]
    live = comparison.replay.steps[1]
    assert len(live._recent) == 8  # type: ignore[attr-defined]
    assert {**live} == {**history.load(repo, RUN).steps[1]}
    assert comparison.first() is None and comparison.equal["steps"] == 120
