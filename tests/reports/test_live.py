"""A run while it goes on: new events alone are read, whatever the length of the ledger."""

import math
from collections.abc import Iterable

import pytest

from m5ws.errors import CorruptObject, NotFound
from m5ws.records.exact import encode
from m5ws.records.failure import EndReason, Failure
from m5ws.records.ledger import NODE, AttemptEnded, CheckpointPublished, Event, Notice, RankEnded, RankStarted, Step
from m5ws.reports.live import LiveRun
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from tests.support.records import planted
from tests.support.stores.counting_store import CountingStore

_RUN, _REPLAY = "7c1d00000001", "7c1d00000002"
_BEGIN_S = 1000.0


def _step(number: int, loss: float | None = None) -> Step:
    quantities = {"loss": encode(1 / number if loss is None else loss), "lr": encode(0.1)}
    return Step(time_s=_BEGIN_S + number, step=number, quantities=quantities, tokens=100, seconds=0.5, total=200_000)


def _steps(first: int, last: int) -> Iterable[Event]:
    return map(_step, range(first, last + 1))


@pytest.fixture
def begun(repo: Repository) -> Repository:
    """A store with a run whose first attempt has begun with two ranks, on another machine."""
    planted.run(repo, _RUN, name="trial")
    planted.begin(repo, _RUN, time_s=_BEGIN_S)
    for rank in (0, 1):
        planted.append(repo, _RUN, 1, str(rank), RankStarted(time_s=_BEGIN_S, rank=rank, world=2, pid=1))
    return repo


def _live(repo: Repository) -> LiveRun:
    live = LiveRun(repo, _RUN)
    live.refresh()
    return live


def test_a_run_without_an_attempt_is_created_and_an_unknown_run_is_an_error(repo: Repository) -> None:
    with pytest.raises(NotFound):
        _live(repo)
    planted.run(repo, _RUN)
    live = _live(repo)
    assert (live.state().newest.standing, live.ended, live.state().newest.last_step) == ("created", False, 0)
    planted.begin(repo, _RUN, time_s=_BEGIN_S)
    live.refresh()
    assert (live.state().newest.standing, live.state().newest.attempt, live.state().newest.host) == ("running", 1, "h")


def test_a_growing_ledger_is_followed_to_its_end(begun: Repository) -> None:
    live = _live(begun)
    assert (live.state().newest.last_step, live.state().newest.world, live.state().steps_per_s) == (0, 2, None)
    planted.append(begun, _RUN, 1, "0", *_steps(1, 4))
    planted.append(begun, _RUN, 1, "1", *_steps(1, 4))
    live.refresh()
    state = live.state()
    assert (state.newest.last_step, state.newest.total_steps, state.steps_per_s, state.tokens_per_s) == (
        4,
        200_000,
        1.0,
        400.0,
    )
    assert (state.left_s, state.last_s) == (199_996.0, _BEGIN_S + 4)
    point = CheckpointPublished(step=4, name=checkpoints.name(4, 1), checkpoint="0" * 64, content="0" * 64)
    failure = Failure(type="ValueError", text="no")
    reason = EndReason(kind="ranks failed", failure=failure)
    planted.append(begun, _RUN, 1, "0", point, _step(5), RankEnded(rank=0, failure=failure))
    live.refresh()
    assert (live.state().checkpoints, live.state().last_checkpoint, live.ended) == (1, 4, False)
    ended = AttemptEnded(time_s=_BEGIN_S + 9, outcome="failed", exit_code=1, reason=reason)
    planted.append(begun, _RUN, 1, NODE, ended)
    live.refresh()
    state = live.state()
    assert (live.ended, state.newest.standing, state.newest.reason, state.left_s) == (True, "failed", reason, None)
    assert (state.newest.rank_failures, state.newest.ended_s) == ({"0": failure}, _BEGIN_S + 9)


def test_a_reading_of_a_long_ledger_reads_only_new_batches(repo: Repository) -> None:
    store = CountingStore(repo.store)
    counted = repo.with_store(store)
    planted.run(repo, _RUN)
    planted.begin(repo, _RUN)
    writer = planted.AttemptWriter(repo, _RUN, 1)
    for first in range(1, 100_001, 1000):
        writer.append("0", *_steps(first, first + 999))
    live = _live(counted)
    assert live.state().newest.last_step == 100_000
    store.gets.clear()
    live.refresh()
    assert store.gets == [f"runs/{_RUN}/ledger/0001/0/00000101"]
    writer.append("0", *_steps(100_001, 100_003))
    store.gets.clear()
    live.refresh()
    assert [key[-10:] for key in store.gets] == ["0/00000101", "0/00000102"]
    assert live.state().newest.last_step == 100_003


def test_repeated_steps_replace_the_steps_of_the_earlier_attempt(begun: Repository) -> None:
    planted.append(begun, _RUN, 1, "0", *_steps(1, 3), _step(4, math.nan), _step(5, math.nan))
    live = _live(begun)
    assert (live.state().not_finite, live.state().newest.last_step) == (4, 5)
    planted.begin(begun, _RUN, 2, resume=checkpoints.name(3, 1), inherits=(checkpoints.name(3, 1),))
    planted.append(begun, _RUN, 2, "0", _step(4, 0.5))
    live.refresh()
    state = live.state()
    assert (state.newest.attempt, state.newest.last_step, state.not_finite) == (2, 4, None)
    assert _live(begun).state() == state, "read at once, it is the same"


def test_a_loss_that_is_not_finite_is_named_and_equal_notices_count_once(begun: Repository) -> None:
    notice = Notice(kind="limit", message="a limit", step=2)
    planted.append(begun, _RUN, 1, "0", _step(1), _step(2, math.inf), _step(3, math.nan), notice)
    planted.append(begun, _RUN, 1, "1", notice, *(Notice(kind="limit", message=str(n)) for n in range(9)))
    state = _live(begun).state()
    assert (state.not_finite, state.notice_count, len(state.notices)) == (2, 10, 5)


def test_a_batch_that_breaks_the_chain_is_an_error(begun: Repository) -> None:
    live = _live(begun)
    planted.run(begun, _REPLAY)
    planted.append(begun, _REPLAY, 1, "0", _step(1))
    planted.append(begun, _REPLAY, 1, "0", _step(2))
    foreign = begun.store.get(f"runs/{_REPLAY}/ledger/0001/0/00000001")
    chain = f"runs/{_RUN}/ledger/0001/0/"
    begun.store.create(f"{chain}{len(begun.store.names(chain)):08d}", foreign)
    with pytest.raises(CorruptObject):
        live.refresh()
