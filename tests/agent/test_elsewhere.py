"""A run belongs to its store: whoever reaches it goes on with the run, and nobody else writes into a living attempt."""

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from m5ws.agent import recovery, run_lock
from m5ws.agent.delivery import Delivery
from m5ws.records.checkpoint import Content
from m5ws.records.ledger import NODE, AttemptEnded, AttemptStarted, Event, RankEnded, RankStarted, Step
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.spool import SpoolWriter, genesis
from m5ws.repository.repository import Repository
from m5ws.runs import state
from tests.support.records import planted

_RUN = "a" * 12
_HOST = "node-17"


class _Attempt:
    """An attempt on its own machine: its directory below `home`, and its events so far."""

    def __init__(self, repo: Repository, home: Path, number: int = 1) -> None:
        self.repo, self.number = repo, number
        self.directory = home / "runs" / _RUN / f"{number:04d}"
        self._spools: dict[str, SpoolWriter] = {}
        self.directory.mkdir(parents=True)
        run_lock.mark_directory(self.directory)

    def says(self, rank: str, event: Event) -> None:
        if rank not in self._spools:
            path = self.directory / "spool" / f"{rank}.spool"
            self._spools[rank] = SpoolWriter(path, genesis(_RUN, self.number, rank))
        self._spools[rank].append(event)

    def begins(self) -> None:
        started = AttemptStarted(time_s=time.time() - 60, attempt=self.number, host=_HOST)
        self.says(NODE, started)
        planted.append(self.repo, _RUN, self.number, NODE, started)

    def delivers(self) -> None:
        Delivery(self.repo, _RUN, self.number, self.directory / "spool").deliver(final=True)


def _life(attempt: _Attempt) -> Iterator[str]:
    """Live an attempt from its plan to its end, and name each moment as it is reached."""
    yield "planned"
    attempt.begins()
    yield "begun"
    attempt.says("0", RankStarted(rank=0, world=2, pid=1))
    yield "a rank is up"
    attempt.delivers()
    yield "that is delivered"
    for number in range(1, 5):
        attempt.says("0", Step(time_s=time.time() - 50, step=number, quantities={}))
        attempt.says("1", Step(step=number, quantities={}))
    yield "steps"
    attempt.delivers()
    yield "steps are delivered"
    planted.checkpoint(attempt.repo, _RUN, 4, Content(format="dcp/1", world=1))
    yield "a checkpoint is published"
    attempt.says("0", Step(step=5, quantities={}))
    yield "a step after it"
    attempt.says("0", RankEnded(rank=0))
    attempt.delivers()
    yield "a rank ended"


_MOMENTS = 9


def _ledger(repo: Repository) -> dict[str, bytes]:
    return {found.key: repo.store.get(found.key) for found in repo.store.list(f"runs/{_RUN}/ledger/")}


def _copy(one: Path, other: Path) -> None:
    shutil.copytree(one / "runs", other / "runs", copy_function=shutil.copy2)


def _nothing(one: Path, other: Path) -> None:
    pass


def _without_mark(one: Path, other: Path) -> None:
    """Make it look like a copy of an older m5ws's directory, without the spools."""
    _copy(one, other)
    for mark in (other / "runs").rglob("owner"):
        mark.unlink()
    for spool in (other / "runs").rglob("node.spool"):
        spool.unlink()


@pytest.mark.parametrize("there", [_nothing, _copy, _without_mark])
@pytest.mark.parametrize("moment", range(_MOMENTS))
def test_recovery_in_another_workspace_writes_nothing_into_a_live_attempt(
    repo: Repository, tmp_path: Path, there: Callable[[Path, Path], None], moment: int
) -> None:
    here, other = tmp_path / "here", tmp_path / "there"
    planted.run(repo, _RUN)
    attempt = _Attempt(repo, here)
    name = next(itertools.islice(_life(attempt), moment, None))
    there(here, other)
    before = _ledger(repo)
    recovery.deliver(repo, other)
    recovery.finish(repo, _RUN, 1, other / "runs" / _RUN / "0001")
    assert _ledger(repo) == before, name
    if name == "planned":
        recovery.refuse_elsewhere(repo, _RUN, other)
    else:
        with pytest.raises(run_lock.RunAlive, match=_HOST) as refused:
            recovery.refuse_elsewhere(repo, _RUN, other)
        assert "--take-over" in refused.value.hint
        found = recovery.find_newest(repo, _RUN)
        assert found is not None and found.host == _HOST and 0 <= time.time() - found.last_s < 61
    # On its own machine, its remaining events are delivered and it is ended.
    recovery.refuse_elsewhere(repo, _RUN, here)
    recovery.deliver(repo, here)
    if name != "planned":
        assert state.load(repo, _RUN).standing == "failed"
        recovery.refuse_elsewhere(repo, _RUN, other)


def test_the_planted_attempt_has_the_number_of_moments_that_the_tests_try(repo: Repository, tmp_path: Path) -> None:
    planted.run(repo, _RUN)
    assert len(list(_life(_Attempt(repo, tmp_path)))) == _MOMENTS


def test_a_superseded_attempt_is_ended_by_its_own_machine_alone(repo: Repository, tmp_path: Path) -> None:
    planted.run(repo, _RUN)
    first = _Attempt(repo, tmp_path / "here")
    for _ in _life(first):
        pass
    second = _Attempt(repo, tmp_path / "there", 2)
    second.begins()
    recovery.refuse_elsewhere(repo, _RUN, tmp_path / "there")
    with pytest.raises(run_lock.RunAlive, match="attempt 2 "):
        recovery.refuse_elsewhere(repo, _RUN, tmp_path / "here")
    later = ledger.successor(repo, _RUN, 1)
    assert later is not None and (later.attempt, later.host) == (2, _HOST)
    assert ledger.successor(repo, _RUN, 2) is None
    recovery.deliver(repo, tmp_path / "here")
    ends = [isinstance(ledger.events(repo, _RUN, number, NODE)[-1], AttemptEnded) for number in (1, 2)]
    assert ends == [True, False]


def test_a_workspace_does_not_own_a_planned_attempt_that_another_workspace_began(
    repo: Repository, tmp_path: Path
) -> None:
    planted.run(repo, _RUN)
    late = _Attempt(repo, tmp_path / "late")
    late.says(NODE, AttemptStarted(time_s=time.time() - 61, attempt=1, host=_HOST))
    _Attempt(repo, tmp_path / "here").begins()
    before = _ledger(repo)
    recovery.deliver(repo, tmp_path / "late")
    assert _ledger(repo) == before
    with pytest.raises(run_lock.RunAlive):
        recovery.refuse_elsewhere(repo, _RUN, tmp_path / "late")


def test_a_moved_workspace_owns_its_attempts_and_a_copied_workspace_owns_none(repo: Repository, tmp_path: Path) -> None:
    planted.run(repo, _RUN)
    attempt = _Attempt(repo, tmp_path / "here")
    attempt.begins()
    _copy(tmp_path / "here", tmp_path / "copy")
    os.rename(tmp_path / "here", tmp_path / "moved")
    place = Path("runs") / _RUN / "0001"
    assert run_lock.is_own(repo, _RUN, 1, tmp_path / "moved" / place)
    assert not run_lock.is_own(repo, _RUN, 1, tmp_path / "copy" / place)
