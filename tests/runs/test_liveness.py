"""A run has ended when no attempt is alive, and its jobs begin no other attempt. An unknown job is waited for."""

import itertools
import os
from pathlib import Path

import pytest

from m5ws.config.settings import Settings
from m5ws.engines import submission
from m5ws.engines.interface import EngineUnavailable, JobState, Standing
from m5ws.records.failure import EndReason
from m5ws.records.job import Cancel, Job
from m5ws.records.ledger import NODE, AttemptEnded
from m5ws.repository.ledger import ledger
from m5ws.repository.references import jobs
from m5ws.repository.repository import Repository
from m5ws.runs import liveness, state
from m5ws.workspace import Workspace
from tests.support.records import planted

_RUN = "7c1d0a9b8e2f"
_AGAIN = {"node lost", "supervisor killed", "SIGUSR2", "SIGTERM"}
"""Ends after which an engine may start the job again."""
_ENDS: dict[str, AttemptEnded | None] = {
    "none": None,
    "finished": AttemptEnded(outcome="finished", exit_code=0, heads={}),
    "unsaved": AttemptEnded(outcome="unsaved", exit_code=5, heads={}),
    "cancelled": AttemptEnded(outcome="interrupted", exit_code=130, reason=EndReason(kind="cancelled"), heads={}),
    "ranks failed": AttemptEnded(outcome="failed", exit_code=1, reason=EndReason(kind="ranks failed"), heads={}),
    "node lost": AttemptEnded(outcome="failed", exit_code=75, reason=EndReason(kind="node lost"), heads={}),
    "supervisor killed": AttemptEnded(
        outcome="failed", exit_code=137, reason=EndReason(kind="supervisor killed"), heads={}
    ),
    **{
        name: AttemptEnded(
            outcome="interrupted", exit_code=130, reason=EndReason(kind="stopped", signal=name), heads={}
        )
        for name in ("SIGUSR2", "SIGTERM", "SIGINT")
    },
}
_ANSWERS: tuple[Standing | None, ...] = ("queued", "running", "ended", "unknown", None)


class _Engine:
    """An engine with the same answer about all jobs: a standing, or none."""

    def __init__(self, standing: Standing | None) -> None:
        self._standing = standing

    def state(self, name: str) -> JobState:
        if self._standing is None:
            raise EngineUnavailable("no answer")
        return JobState(standing=self._standing)


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    (tmp_path / "m5ws.toml").write_text("")
    return Workspace(tmp_path, Settings(), dict(os.environ)).repository(create=True)


def _job(repo: Repository, name: str = "job", engine: str = "batch", settings: str = "{}") -> Job:
    job = Job(
        run=_RUN, name=name, cluster="cloud", engine="batch", nodes=1, settings=settings, script="",
        created_s=repo.store.now(),
    )  # fmt: skip
    return jobs.publish(repo, job if engine == "batch" else _of_slurm(job))


def _of_slurm(job: Job) -> Job:
    return Job(**{name: getattr(job, name) for name in job.__struct_fields__} | {"engine": "slurm"})


def _cancel(repo: Repository, job: Job, then: str | None) -> None:
    jobs.cancel(repo, Cancel(run=_RUN, attempt=0, jobs=(job.name,), created_s=repo.store.now(), next=then))


def _expected(end: str, answer: Standing | None, *, own: bool, cancel: str, engine: str) -> bool:
    """Return True if `m5ws wait` ends. `own`: the newest attempt, if any, is of the job."""
    if end == "finished":
        return True
    if cancel:
        return cancel == "for good"
    if answer in ("queued", "running"):
        return False
    has_begun = own and end != "none"
    if answer == "unknown":
        return has_begun or engine != "batch"
    if answer is None:
        return has_begun and end not in _AGAIN
    return True


@pytest.mark.parametrize("end", _ENDS)
def test_a_run_has_ended_if_no_job_can_begin_an_attempt(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    planted.run(repo, _RUN)
    cases = itertools.product((True, False), ("", "for good", "moves"), ("batch", "slurm"))
    for number, (own, cancel, engine) in enumerate(cases):
        job = _job(repo, f"job-{number}", engine)
        if (event := _ENDS[end]) is not None:
            # The attempt of an earlier job, or of none, tells nothing about this job.
            # Nor does the clock of its machine.
            later_s = job.created_s + 7200
            planted.begin(repo, _RUN, number + 1, None, job_name=job.name if own else None, time_s=later_s)
            planted.date(repo, _RUN, number + 1, job.created_s + (1 if own else -1))
            planted.append(repo, _RUN, number + 1, NODE, event)
        if cancel:
            _cancel(repo, job, "another" if cancel == "moves" else None)
        monkeypatch.setattr(jobs, "of_attempts", lambda *_, job=job: [job])
        found = state.load_newest(repo, _RUN)
        for answer in _ANSWERS:
            monkeypatch.setattr(submission, "engine_of_job", lambda *_, answer=answer: _Engine(answer))
            ended, note = liveness.look(Settings(), repo, found)
            expected = _expected(end, answer, own=own, cancel=cancel, engine=engine)
            assert ended == expected, (end, answer, own, cancel, engine)
            assert bool(note) == (answer is None and not cancel and end != "finished")


@pytest.mark.parametrize("end", ["ranks failed", "cancelled", "unsaved"])
def test_a_failure_without_an_answer_ends_no_run_that_restarts_after_failures(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    planted.run(repo, _RUN)
    job = _job(repo, settings='{"run": {"restart": {"max": 2}}}')
    planted.begin(repo, _RUN, job_name=job.name)
    event = _ENDS[end]
    assert event is not None
    planted.append(repo, _RUN, 1, NODE, event)
    monkeypatch.setattr(submission, "engine_of_job", lambda *_: _Engine(None))
    ended, _ = liveness.look(Settings(), repo, state.load_newest(repo, _RUN))
    assert ended == (end != "ranks failed")


@pytest.mark.parametrize("silent_s", [0, 121])
@pytest.mark.parametrize("of", ["the job", "no job", "a command of another run's job"])
@pytest.mark.parametrize("answer", _ANSWERS)
def test_a_silent_attempt_is_lost_if_no_job_waits_or_runs(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, answer: Standing | None, silent_s: int, of: str
) -> None:
    planted.run(repo, _RUN)
    job = _job(repo)
    planted.begin(repo, _RUN, job_name={"the job": job.name, "no job": None}.get(of, "other"))
    now = ledger.newest_s(repo, _RUN, 1)
    monkeypatch.setattr(type(repo.store), "now", lambda _: now + silent_s)
    monkeypatch.setattr(submission, "engine_of_job", lambda *_: _Engine(answer))
    ended, note = liveness.look(Settings(), repo, state.load_newest(repo, _RUN))
    is_looked_at = of == "the job" and silent_s > 120
    assert ended == (is_looked_at and answer in ("ended", "unknown")) == ("--take-over" in note)
    assert ("does not answer" in note) == (is_looked_at and answer is None)


def test_a_job_is_unsubmitted_for_a_day(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    job, now = _job(repo), repo.store.now()
    for age_s, expected in ((0, True), (86_399, True), (86_401, False)):
        monkeypatch.setattr(type(repo.store), "now", lambda _, age_s=age_s: now + age_s)
        assert liveness.is_unsubmitted(repo, job) == expected
