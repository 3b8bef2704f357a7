"""A store that does not answer during an attempt: steps are shown, and the end has the time of the end."""

import signal
import threading
import time
from pathlib import Path

import msgspec
import pytest

from m5ws.attempts import leader, planning
from m5ws.launch import launch_request
from m5ws.records import codec
from m5ws.records.environment import Observed
from m5ws.records.launch import ADMITTED, OBSERVED, Context, LaunchRequest
from m5ws.records.ledger import AnyEvent, AttemptEnded, Notice, RankEnded, RankStarted, Step
from m5ws.records.run import LaunchSpec
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.spool import SpoolWriter, genesis
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository
from tests.support.records.bisect_lab import Lab
from tests.support.stores.passing_store import PassingStore

_LIMIT_S = 60.0
_STEPS = range(1, 7)


class _Outage:
    """Holds each publication of a ledger while the rank is at work. `published_s` has the times of publications."""

    def __init__(self, repo: Repository) -> None:
        self.is_away, self.is_noticed, self.is_over = False, threading.Event(), threading.Event()
        self.published_s: list[float] = []
        self.repo = Repository(PassingStore(repo.store, self._hold), repo.format)

    def _hold(self, operation: str, key: str) -> None:
        if operation == "create" and "/ledger/" in key:
            if self.is_away:
                self.is_noticed.set()
                assert self.is_over.wait(_LIMIT_S), "the steps are shown only after their delivery"
            self.published_s.append(time.time())


class _Rank:
    """A `Launcher` and `Process` of one rank: it steps during the outage, and ends when its steps are shown."""

    pid = 0

    def __init__(self, outage: _Outage) -> None:
        self.outage, self.shown = outage, list[int]()
        self._spool: SpoolWriter | None = None
        self._context: Context | None = None
        self._status: int | None = None

    def can_mount(self, folder: str, path: str) -> bool:
        return False

    def facts(self) -> dict[str, str]:
        return {}

    def launch(self, request: LaunchRequest) -> "_Rank":
        path = request.environment[launch_request.CONTEXT_VARIABLE]
        self._context = codec.decode(Path(path).read_bytes(), Context, path)
        Path(self._context.spool_dir, OBSERVED).write_bytes(codec.encode(Observed(facts={"torch": "2.13"})))
        return self

    def watch(self, rank: str, event: AnyEvent) -> None:
        if isinstance(event, Step):
            self.shown.append(event.step)

    def poll(self) -> int | None:
        if self._status is not None:
            return self._status
        assert self._context is not None
        folder = Path(self._context.spool_dir)
        if self._spool is None and (folder / ADMITTED).exists():
            self._spool = SpoolWriter(folder / "0.spool", genesis(self._context.run, 1, "0"))
            self._spool.append(RankStarted(rank=0, world=1, pid=1))
            self.outage.is_away = True
            self._spool.append(Notice(kind="limit", message="published at once"))
        elif self._spool is not None and not self.shown and self.outage.is_noticed.is_set():
            for step in _STEPS:
                self._spool.append(Step(step=step, quantities={"loss": (1.0).hex()}))
        elif self._spool is not None and self.shown == [*_STEPS]:
            self._spool.append(RankEnded(rank=0))
            self._spool.close()
            threading.Timer(0.2, self._answer).start()
            self._status = 0
        return self._status

    def _answer(self) -> None:
        self.outage.is_away = False
        self.outage.is_over.set()

    def stop(self, grace_s: float, number: signal.Signals = signal.SIGTERM) -> int:
        return 130


def test_steps_are_shown_while_the_store_does_not_answer_and_the_end_has_its_own_time(
    repo: Repository, tmp_path: Path
) -> None:
    lab = Lab(repo, tmp_path)
    lab.train("a", lambda bad, step: 0.0)
    outage = _Outage(repo)
    rank = _Rank(outage)
    ports = msgspec.structs.replace(lab.ports, repo=outage.repo, launcher=rank)
    new = planning.new_run(runs.load(repo, lab.good).snapshot, LaunchSpec(command=("a.py",)))
    result = leader.execute(ports, planning.plan(repo, new, tmp_path / "home", tmp_path, {}), rank.watch)
    assert (result.outcome, result.delivered, rank.shown) == ("finished", True, [*_STEPS])
    ended = ledger.ended(repo, new.id, 1)
    assert isinstance(ended, AttemptEnded)
    late = [moment for moment in outage.published_s if moment > ended.time_s]
    assert len(late) >= 2, "the end has the time of its publication"
    steps = [event.step for event in ledger.events(repo, new.id, 1, "0") if isinstance(event, Step)]
    assert steps == [*_STEPS]


def test_an_error_of_the_comparison_beside_a_training_is_raised(repo: Repository, tmp_path: Path) -> None:
    lab = Lab(repo, tmp_path)
    lab.train("a", lambda bad, step: 0.0)
    rank = _Rank(_Outage(repo))
    ports = msgspec.structs.replace(lab.ports, repo=rank.outage.repo, launcher=rank)
    new = planning.new_run(runs.load(repo, lab.good).snapshot, LaunchSpec(command=("a.py",)))
    plan = planning.plan(repo, new, tmp_path / "home", tmp_path, {})

    def judge(name: str, event: AnyEvent) -> bool:
        raise RuntimeError("a fault of the comparison")

    with pytest.raises(RuntimeError, match="a fault of the comparison"):
        leader.execute(ports, plan, rank.watch, judge=judge)
