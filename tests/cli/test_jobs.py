"""Commands about a run with jobs on a cluster: the jobs that begin its attempts decide."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from m5ws.config.settings import Settings
from m5ws.engines import submission
from m5ws.engines.interface import EngineUnavailable, JobState, Standing
from m5ws.records.job import Cancel, Job
from m5ws.repository.references import jobs
from m5ws.repository.repository import Repository
from tests.cli.conftest import M5, Made
from tests.support.records import planted

_RUN = "5eeb0c1d27e5"


class _Engine(msgspec.Struct, frozen=True):
    """An engine whose jobs have these states, by name."""

    known: dict[str, Standing]

    def state(self, name: str) -> JobState:
        return JobState(standing=self.known.get(name, "unknown"))


@pytest.fixture
def job(home: Repository, made: Made, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    """Publish a job of a run, which has no attempt, with its state in the engine."""
    planted.run(home, _RUN, made.snapshot)
    engine = _Engine({})
    monkeypatch.setattr(submission, "engine_of_job", lambda *_: engine)

    def publish(standing: Standing, *command: str) -> Job:
        name = jobs.new_name(_RUN)
        engine.known[name] = standing
        planned = Job(
            run=_RUN, name=name, cluster="big", engine="slurm", nodes=2, settings="", script="",
            created_s=float(len(engine.known)), command=command,
        )  # fmt: skip
        return jobs.publish(home, planned)

    return publish


@pytest.mark.parametrize("words", [("resume", _RUN), ("resume", _RUN, "--on", "big"), ("rm", _RUN)])
@pytest.mark.parametrize("standing", ["queued", "running"])
def test_a_run_with_a_job_that_waits_or_runs_is_left_alone(
    m5: M5, job: Callable[..., Job], words: tuple[str, ...], standing: Standing
) -> None:
    alive = job(standing)
    job("ended")
    refused = m5(*words)
    assert refused.status == 2 and alive.name in refused.err and f"m5ws cancel {_RUN}" in refused.err


def test_a_job_with_a_command_begins_no_attempt_of_its_run(m5: M5, job: Callable[..., Job], place: Path) -> None:
    job("ended")
    job("running", "reproduce", _RUN)
    assert m5("wait", _RUN, "--json").document["standing"] == "created"
    assert m5("rm", _RUN, "--dry-run").status == 0


def test_a_cancelled_job_that_began_nothing_leaves_its_run_interrupted(
    m5: M5, home: Repository, job: Callable[..., Job], place: Path
) -> None:
    ended = job("ended")
    assert m5("wait", _RUN).status == 1
    jobs.cancel(home, Cancel(run=_RUN, attempt=0, jobs=(ended.name,), created_s=9.0))
    assert m5("wait", _RUN).status == 130


def test_a_job_that_failed_to_begin_is_a_failure_with_its_reason(
    m5: M5, home: Repository, job: Callable[..., Job], place: Path
) -> None:
    failed = job("ended")
    request = Cancel(run=_RUN, attempt=0, jobs=(failed.name,), created_s=9.0, host="n1", problem="no scratch folder")
    jobs.cancel(home, request)
    waited = m5("wait", _RUN)
    assert waited.status == 1 and "cancelled from n1: no scratch folder" in waited.err


def test_an_engine_without_an_answer_does_not_hide_another_job(
    m5: M5, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    alive, newest = job("queued"), job("ended")
    answers = submission.engine_of_job

    def engine_of_job(settings: Settings, asked: Job) -> Any:
        if asked.name == newest.name:
            raise EngineUnavailable("no answer")
        return answers(settings, asked)

    monkeypatch.setattr(submission, "engine_of_job", engine_of_job)
    refused = m5("rm", _RUN)
    assert refused.status == 2 and alive.name in refused.err


def test_a_replay_that_has_not_begun_is_not_resumed(m5: M5, home: Repository, made: Made, place: Path) -> None:
    planted.run(home, _RUN, made.snapshot, purpose="reproduce", reproduces=made.run)
    refused = m5("resume", _RUN)
    assert refused.status == 3 and f"m5ws reproduce {made.run}" in refused.err
