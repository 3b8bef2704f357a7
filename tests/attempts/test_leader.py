"""Each stage of an attempt that may take long is reported, and an attempt that has begun gets its true end."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from m5ws.agent import recovery
from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.attempts import leader, planning
from m5ws.errors import M5Error
from m5ws.records.incident import INCIDENTS
from m5ws.records.run import LaunchSpec
from m5ws.repository.fsck import fsck
from m5ws.repository.ledger import ledger
from m5ws.repository.references import incidents, runs
from m5ws.repository.repository import Repository
from m5ws.runs import listing, state
from tests.support.records.bisect_lab import Crash, Lab
from tests.support.stores.passing_store import PassingStore


def _plan(lab: Lab, folder: Path) -> AttemptPlan:
    snapshot = runs.load(lab.ports.repo, lab.good).snapshot
    new = planning.new_run(snapshot, LaunchSpec(command=("a.py",), outputs=("out",)))
    return planning.plan(lab.ports.repo, new, folder / "home", folder, {})


def _stages(lab: Lab, folder: Path) -> list[str]:
    stages: list[str] = []
    leader.execute(lab.ports, _plan(lab, folder), None, lambda stage, done, total: stages.append(stage))
    return [stage.partition(" ")[0] for stage in dict.fromkeys(stages)]


def test_an_attempt_reports_its_stages_in_order(repo: Repository, tmp_path: Path) -> None:
    lab = Lab(repo, tmp_path)
    lab.train("a", lambda bad, step: 0.0)
    assert _stages(lab, tmp_path) == ["materialising", "starting", "observing", "running", "storing", "removing"]
    lab.ranks.stop_at = lab.ranks.begun + 1
    assert _stages(lab, tmp_path) == ["materialising", "starting", "observing", "running", "stopping", "storing"]


def test_a_run_has_the_time_of_the_clock_of_the_store(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(repo, tmp_path)
    lab.train("a", lambda bad, step: 0.0)
    monkeypatch.setattr(repo.store, "now", lambda: 5000.0)
    plan = _plan(lab, tmp_path)
    leader.execute(lab.ports, plan)
    assert runs.load(repo, plan.run.id).created_s == 5000.0
    assert next(row for row in listing.list_runs(repo) if row.id == plan.run.id).created_s == 5000.0


def _failing(repo: Repository, number: int, error: BaseException, *, after: bool) -> Repository:
    """Return a repository whose operation with a number raises an error; with `after`, its create after it is done."""
    counted = itertools.count(1)

    def fail(*_: str) -> None:
        if next(counted) == number:
            raise error

    store = PassingStore(repo.store, created=fail) if after else PassingStore(repo.store, fail)
    return Repository(store, repo.format)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("error", "kind"),
    [(lambda: KeyboardInterrupt("SIGTERM"), "stopped"), (lambda: OSError("the store is gone"), "not launched")],
)
def test_an_attempt_that_ends_before_its_script_begins_has_the_reason(
    error: Callable[[], BaseException], kind: str, repo: Repository, tmp_path: Path, *, after: bool
) -> None:
    lab = Lab(repo, tmp_path)
    lab.train("a", lambda bad, step: 0.0)
    begun, reasons = lab.ranks.begun, []
    for number in itertools.count(1):
        plan, faulty = _plan(lab, tmp_path), _failing(repo, number, error(), after=after)
        with suppress(KeyboardInterrupt, M5Error, OSError):
            leader.execute(msgspec.structs.replace(lab.ports, repo=faulty), plan)
        if lab.ranks.begun > begun:
            break
        recovery.deliver(repo, plan.directory.parent.parent.parent)
        if ledger.attempts(repo, plan.run.id):
            ended = ledger.ended(repo, plan.run.id, 1)
            assert ended is not None and ended.reason is not None
            reasons.append(ended.reason.kind)
    assert reasons and set(reasons) == {kind}
    assert fsck.check(repo).clean


class _Killed(BaseException):
    """The end of the process of the leader."""


def _crash(bad: frozenset[str], step: int) -> float:
    raise Crash


@pytest.mark.parametrize("error", [KeyboardInterrupt, _Killed])
def test_each_failed_attempt_gets_one_incident_whenever_its_leader_was_stopped(
    error: type[BaseException], repo: Repository, tmp_path: Path
) -> None:
    lab = Lab(repo, tmp_path)
    lab.train("a", lambda bad, step: 0.0)
    lab.ranks.rule, made_up = _crash, 0

    def lead(stop_at: int) -> tuple[AttemptPlan, list[int]]:
        """Lead an attempt that the error stops at an operation of the store. Return the attempts begun at each."""
        plan, begun = _plan(lab, tmp_path), list[int]()

        def count(*_: str) -> None:
            begun.append(lab.ranks.begun)
            if len(begun) == stop_at:
                raise error

        with suppress(error):
            faulty = Repository(PassingStore(repo.store, count), repo.format)
            leader.execute(msgspec.structs.replace(lab.ports, repo=faulty), plan)
        return plan, begun

    _, begun = lead(0)
    for stop_at in range(begun.count(begun[0]) + 1, len(begun) + 1):
        plan, _ = lead(stop_at)
        home, run = plan.directory.parents[2], plan.run.id
        recovery.deliver(repo, home)
        made_up += incidents.newest_of(repo, run) is None
        leader.execute(lab.ports, planning.plan(repo, planning.resumed(repo, run), home, tmp_path, {}))
        failed = [each.attempt for each in state.load(repo, run).attempts if each.standing == "failed"]
        assert [f"{attempt:04d}" for attempt in failed] == [*repo.store.names(f"{INCIDENTS}{run}/")], stop_at
    assert made_up > 3
    assert fsck.check(repo).clean
