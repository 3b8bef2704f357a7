"""A store that is away, full, slow or denies access while a run saves: the run does as configured, and says so.

No checkpoint that was published is ever wrong: the run that goes on from it ends as a run without trouble.
"""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from m5ws.records.launch import Saving
from m5ws.records.ledger import Step
from m5ws.repository.fsck import fsck
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from m5ws.store.interface import ObjectStore
from m5ws.store.s3.location import parse
from m5ws.store.s3.retry import RetryPolicy
from m5ws.store.s3.store import S3Store
from m5ws.training.checkpoint import checkpointing
from m5ws.training.checkpoint.writer import TooManyFailures
from m5ws.training.runtime import context
from tests.conftest import loud_skip
from tests.support.campaigns import soak_page
from tests.support.faults.troubles import TROUBLES, Directory, Server, file_system
from tests.support.network.proxies import FaultProxy
from tests.support.ranks.loops import train

if TYPE_CHECKING:
    from tests.support.s3.s3_servers import S3Server

_STEPS = 14
_SAID = {
    "away": r"the store .* no longer exists|StoreUnreachable|StoreFailing",
    "full": "No space left on device|QuotaExceeded",
    "denied": "PathDenied: permission denied|AccessDenied",
}
_PATIENCE_S = 0.3
_HEADER = ("| store | for a minute it | checkpoints | saves that failed, said | seconds |", "|---|---|---|---|---|")
_WAIT_S = 60.0


@pytest.fixture(params=TROUBLES)
def trouble(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=["directory", pytest.param("S3 (moto)", marks=pytest.mark.long)])
def troubled(request: pytest.FixtureRequest, trouble: str, tmp_path: Path) -> Iterator[Directory | Server]:
    """Return a store and its trouble, which has not begun."""
    if request.param == "directory":
        found = Directory(tmp_path, trouble)
        with file_system(found.root.parent) as own:
            if trouble == "full" and not own:
                loud_skip("a full disk: mounting a small file system needs the rights of the superuser")
            yield found
            found.end()
        return
    request.getfixturevalue("s3_environment")
    server: S3Server = request.getfixturevalue("s3_server")
    with FaultProxy(server.endpoint.removeprefix("http://")) as proxy:
        url = server.url(server.bucket(), region="eu-west-1").replace(server.endpoint, proxy.endpoint)
        patient = request.node.get_closest_marker("soak") is not None
        yield Server(proxy, trouble, lambda: open_store(url) if patient else _impatient(url))


def _impatient(url: str) -> ObjectStore:
    """Open a store in S3 that gives a request up soon, so that the test need not wait for minutes."""
    budget = RetryPolicy(budget_s=_PATIENCE_S, contact_s=_PATIENCE_S, first_s=0.01, longest_s=0.05)
    return S3Store(parse(url), budget)


class _Tried:
    """A run whose store is in trouble while it does some of its steps; `repo` is the store of a bystander."""

    def __init__(self, in_process: Any, undisturbed: Repository, troubled: Directory | Server) -> None:
        self._in_process = in_process
        self.troubled = troubled
        self.repo = in_process.runner.repo = Repository.create(troubled.opened())
        self.run = in_process.runner.run
        runner = in_process.runner
        self._whole = type(in_process)(type(runner)(undisturbed, runner.tmp / "undisturbed", runner.parents))

    def __call__(
        self, begins: int, ends: int | None, *, stops: int | None = None, lasts_s: float = 0.0, **saving: Any
    ) -> Any:
        """Train, with a checkpoint every two steps: trouble from step `begins` to step `ends`, a signal at `stops`.

        With `lasts_s` it ends by the clock, and step `ends` waits for that.
        """
        over = threading.Event()

        def end() -> None:
            self.troubled.end()
            over.set()

        def at(step: int) -> None:
            if step == begins:
                self._wait_for(begins - 1)
                self.troubled.begin()
                if lasts_s:
                    threading.Timer(lasts_s, end).start()
            if step == ends and lasts_s:
                over.wait()
            elif step == ends:
                end()
            if step == stops:
                os.kill(os.getpid(), signal.SIGTERM)

        return self._in_process(
            train(_STEPS, 2, at), repo=Repository.open(self.troubled.opened()), saving=Saving(**saving)
        )

    def _wait_for(self, step: int) -> None:
        end_s = time.monotonic() + _WAIT_S
        while self.published()[-1:] != [step] or _saves():
            assert time.monotonic() < end_s, f"the checkpoint after step {step} was not published"
            time.sleep(0.02)

    def published(self) -> list[int]:
        return [checkpoints.step_of(name) for name in checkpoints.valid(self.repo, self.run)]

    def judge(self) -> None:
        """Read each published checkpoint, and resume the newest; its bits equal the bits of a run without trouble."""
        report = fsck.check(self.repo, read_data=True)
        # The runner publishes neither the run nor the observed environment.
        assert [one for one in report.damage if one.key.startswith("objects/") and "0" * 64 not in one.key] == []
        names = [name for name in checkpoints.valid(self.repo, self.run) if checkpoints.step_of(name) < _STEPS]
        contents = {checkpoints.step_of(name): checkpoints.find(self.repo, self.run, name)[1].content for name in names}
        newest = checkpoints.digest(self.repo, self.run, names[-1])
        again, error = self._in_process(train(_STEPS, 2), resume=newest)
        assert error is None
        whole, error = self._whole(train(_STEPS, 2))
        assert error is None
        assert (contents | again.contents).items() <= whole.contents.items()
        assert _STEPS in again.contents


@pytest.fixture
def tried(in_process: Any, repo: Repository, troubled: Directory | Server) -> _Tried:
    return _Tried(in_process, repo, troubled)


def _saves() -> bool:
    """Return True while a save is running: it reads the store once more after it has published."""
    return any(thread.name == context.SAVE_THREAD for thread in threading.enumerate())


def _says(notices: list[str], trouble: str) -> bool:
    return bool(notices) and all(re.search(_SAID[trouble], said) for said in notices)


def test_training_continues_and_saves_again_after_the_trouble(tried: _Tried, trouble: str) -> None:
    attempt, error = tried(5, 11)
    assert error is None and len(attempt.of(Step)) == _STEPS
    assert tried.published() == list(attempt.contents)
    failed = attempt.notices("save-failed")
    if trouble == "slow":
        assert list(attempt.contents) == list(range(2, _STEPS + 1, 2)) and not failed
    else:
        assert {2, 4, 12, 14} <= attempt.contents.keys() and 6 not in attempt.contents
        assert "after step 6" in failed[0] and _says(failed, trouble), failed
    tried.judge()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_minute_of_trouble_costs_no_published_checkpoint(
    tried: _Tried, trouble: str, request: pytest.FixtureRequest
) -> None:
    started_s = time.monotonic()
    attempt, error = tried(5, 11, lasts_s=60.0)
    assert error is None and len(attempt.of(Step)) == _STEPS
    assert tried.published() == list(attempt.contents)
    assert {2, 4, 12, 14} <= attempt.contents.keys()
    failed = attempt.notices("save-failed")
    assert trouble == "slow" or not failed or _says(failed, trouble), failed
    tried.judge()
    made = f"{len(attempt.contents)} of {_STEPS // 2}"
    cells = (request.node.callspec.params["troubled"], trouble, made, len(failed))
    row = "| " + " | ".join(map(str, (*cells, f"{time.monotonic() - started_s:,.0f}"))) + " |"
    print(row)
    soak_page.put("troubles", _HEADER, row, cells=2)


@pytest.mark.parametrize("trouble", ["away", "full", "denied"])
def test_training_ends_after_the_configured_number_of_failures(tried: _Tried, trouble: str) -> None:
    attempt, error = tried(5, None, failures=2)
    tried.troubled.end()
    assert isinstance(error, TooManyFailures) and "2 checkpoints" in str(error)
    assert max(step.step for step in attempt.of(Step)) < _STEPS
    assert tried.published() == [2, 4] and _says(attempt.notices("save-failed"), trouble)
    tried.judge()


@pytest.mark.parametrize("trouble", ["away"])
def test_a_stopped_run_ends_within_its_deadline_without_its_store(
    tried: _Tried, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "_PAUSE_S", 0.5)  # It has not been tried as often as it may when time is up.
    attempt, error = tried(5, None, stops=7, deadline_s=0.3)
    tried.troubled.end()
    assert isinstance(error, SystemExit) and error.code == 128 + signal.SIGTERM
    assert [step.step for step in attempt.of(Step)][-1] == 7
    assert 7 not in attempt.contents
    assert any("after step 7" in said and "abandoned" in said for said in attempt.notices("save-failed"))
    tried.judge()
