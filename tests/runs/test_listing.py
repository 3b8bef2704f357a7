"""Lists of many runs on a store that is far away: few requests for each, and many at a time."""

import threading
from pathlib import Path

import pytest

from m5ws.records.ledger import NODE, AttemptEnded, Event, RankEnded, Step
from m5ws.repository import reindex
from m5ws.repository.repository import Repository
from m5ws.runs import listing, state
from m5ws.store.local import LocalStore
from tests.support.records import planted
from tests.support.stores.counting_store import CountingStore
from tests.support.stores.passing_store import PassingStore


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository.create(LocalStore(tmp_path / "store", durable=False))


def _train(repo: Repository, run_id: str, steps: int, *after: Event) -> None:
    """Publish a run whose rank 0 told each of its steps in a batch of its own, and `after` them in another."""
    planted.run(repo, run_id)
    planted.begin(repo, run_id)
    writer = planted.AttemptWriter(repo, run_id, 1)
    for step in range(1, steps + 1):
        writer.append("0", Step(step=step, total=90, quantities={}, seconds=0.1))
    writer.append("0", *after)


def test_listing_a_run_with_a_long_ledger_costs_no_more_reads(repo: Repository) -> None:
    read = []
    for run_id, steps in (("a" * 12, 3), ("b" * 12, 60)):
        _train(repo, run_id, steps)
        counting = CountingStore(repo.store)
        found = state.load_newest(Repository.open(counting), run_id)
        assert (found.last_step, found.total_steps, found.standing) == (steps, 90, "running")
        read.append(len(counting.gets))
    assert read[0] == read[1]


def test_the_last_step_is_found_before_later_events(repo: Repository) -> None:
    _train(repo, "a" * 12, 5, RankEnded(rank=0))
    planted.append(repo, "a" * 12, 1, NODE, AttemptEnded(outcome="finished", exit_code=0))
    (row,) = listing.list_runs(repo)
    assert (row.last_step, row.total_steps, row.standing) == (5, 90, "finished")


@pytest.mark.parametrize("is_indexed", [True, False])
def test_an_attempt_without_steps_keeps_the_last_step_of_the_run(repo: Repository, is_indexed: bool) -> None:
    run = "a" * 12
    _train(repo, run, 5)
    planted.append(repo, run, 1, NODE, AttemptEnded(outcome="failed", exit_code=1))
    planted.begin(repo, run, 2)
    planted.append(repo, run, 2, NODE, AttemptEnded(outcome="finished", exit_code=0))
    if is_indexed:
        reindex.fill(repo)
    (row,) = listing.list_runs(repo)
    assert (row.last_step, row.attempts, row.standing) == (5, 2, "finished")
    assert state.load(repo, run).last_step == 5


def test_a_run_with_a_missing_batch_is_listed_as_damaged_beside_other_runs(repo: Repository) -> None:
    _train(repo, "a" * 12, 5)
    _train(repo, "b" * 12, 5)
    repo.store.delete(f"runs/{'a' * 12}/ledger/0001/0/00000002")
    rows = {row.id: row for row in listing.list_runs(repo)}
    assert "00000002 is missing" in (rows["a" * 12].problem or "") and rows["b" * 12].problem is None


def test_runs_are_read_in_parallel(repo: Repository) -> None:
    """Each run's record is handed out once eight are asked for, so one after the other would get none."""
    for number in range(8):
        planted.run(repo, f"{number:012x}")
    together = threading.Barrier(8)

    def before(operation: str, key: str) -> None:
        if operation == "get" and key.endswith("/run"):
            together.wait(timeout=60)

    far = Repository.open(PassingStore(repo.store, before))
    assert len(listing.list_runs(far)) == 8
