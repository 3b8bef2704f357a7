"""A job of AWS Batch without nodes, or in a silent region, moves to the next queue, once, and never after a cancel."""

from pathlib import Path

import msgspec
import pytest

from m5ws import workspace as workspaces
from m5ws.config.settings import BatchCluster, BatchQueue, Settings
from m5ws.engines import submission
from m5ws.engines.interface import EngineUnavailable, JobRequest, JobState
from m5ws.library import regions
from m5ws.records.job import Cancel, Job
from m5ws.repository.references import jobs
from m5ws.repository.repository import Repository
from m5ws.workspace import Workspace
from tests.support.records import planted
from tests.support.workspace import command_line

_RUN = "7c1d0a9b8e2f"
_CAPACITY = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY; place 1 in the queue"


class _Engine:
    """Queues whose jobs all have one state. They note the names of submitted and cancelled jobs with their queue."""

    def __init__(self, state: JobState | None) -> None:
        self.answer = state
        self.accepts = True
        self.submitted: list[tuple[str, str | None]] = []
        self.cancelled: list[str] = []
        self.region: str | None = None

    def of(self, cluster: BatchCluster) -> "_Engine":
        self.region = cluster.region
        return self

    def state(self, name: str) -> JobState:
        if self.answer is None:
            raise EngineUnavailable("no answer")
        return self.answer

    def render(self, request: JobRequest) -> str:
        return f"script of {request.name}"

    def check(self, request: JobRequest, script: str) -> None:
        if not self.accepts:
            raise EngineUnavailable("no such queue")

    def submit(self, request: JobRequest, script: str) -> str:
        self.submitted.append((request.name, self.region))
        return f"id of {request.name}"

    def cancel(self, name: str) -> None:
        self.cancelled.append(name)


@pytest.fixture
def place(tmp_path: Path) -> tuple[Workspace, Repository, Job]:
    (tmp_path / "m5ws.toml").write_text("")
    workspace = workspaces.find(tmp_path)
    repo = workspace.repository(create=True)
    cluster = BatchCluster(
        queue="a", image=f"a@sha256:{'a' * 64}", cpus_per_node=1, memory_mib=64, patience_s=100,
        elsewhere=(BatchQueue(queue="b", region="second"), BatchQueue(queue="c", region="third")),
    )  # fmt: skip
    settings = msgspec.json.encode(Settings(clusters={"cloud": cluster})).decode()
    job = Job(
        run=_RUN, name=f"m5ws-{_RUN}-1", cluster="cloud", engine="batch", nodes=2, settings=settings, script="",
        options=("--env", "warn"), created_s=repo.store.now(),
    )  # fmt: skip
    return workspace, repo, jobs.publish(repo, job)


def _engine(monkeypatch: pytest.MonkeyPatch, state: JobState | None) -> _Engine:
    engine = _Engine(state)
    monkeypatch.setattr(submission, "engine_of", engine.of)
    return engine


@pytest.mark.parametrize(
    ("state", "waited_s", "moves"),
    [
        (JobState(standing="queued", text="RUNNABLE"), 0, False),
        (JobState(standing="queued", text="RUNNABLE"), 101, True),
        (JobState(standing="queued", text="RUNNABLE", reason=_CAPACITY), 0, True),
        (JobState(standing="ended", text="FAILED", reason=_CAPACITY), 0, True),
        (JobState(standing="ended", text="FAILED", reason="Essential container in task exited"), 101, False),
        (JobState(standing="running", text="RUNNING"), 99, False),
        (JobState(standing="running", text="RUNNING"), 101, True),
        (JobState(standing="unknown"), 101, False),
        (None, 99, False),
        (None, 101, True),
    ],
)
def test_a_job_moves_if_it_waits_too_long_is_silent_or_lacks_capacity(
    place: tuple[Workspace, Repository, Job],
    monkeypatch: pytest.MonkeyPatch,
    state: JobState | None,
    waited_s: float,
    moves: bool,
) -> None:
    workspace, repo, job = place
    engine = _engine(monkeypatch, state)
    now = repo.store.now()
    monkeypatch.setattr(type(repo.store), "now", lambda _: now + waited_s)
    moved = regions.move_on(workspace, repo, _RUN)
    assert (moved is not None) == moves == (jobs.cancel_of_job(repo, job) is not None)
    if moved is not None:
        assert engine.submitted == [(jobs.next_name(job), "second")] and engine.cancelled == [job.name]
        assert (moved.job.options, moved.job.nodes, moved.place) == (("--env", "warn"), 2, "queue b of second")


def test_a_job_moves_through_all_queues_and_stays_in_the_last(
    place: tuple[Workspace, Repository, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, repo, _ = place
    engine = _engine(monkeypatch, JobState(standing="queued", reason=_CAPACITY))
    now = repo.store.now()
    times = iter(range(1, 100))
    monkeypatch.setattr(type(repo.store), "now", lambda _: now + next(times))
    moves = [regions.move_on(workspace, repo, _RUN) for _ in range(4)]
    assert [moved and moved.place for moved in moves] == ["queue b of second", "queue c of third", None, None]
    assert [region for _, region in engine.submitted] == ["second", "third"]
    names = [job.name for job in jobs.of_run(repo, _RUN)]
    # All jobs but the last begin no attempt any more.
    assert [name for name in names if any(name in each.jobs for each in jobs.cancels(repo, _RUN))] == names[:-1]


def test_a_cancelled_job_and_a_refusal_move_nothing(
    place: tuple[Workspace, Repository, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, repo, job = place
    engine = _engine(monkeypatch, JobState(standing="queued", reason=_CAPACITY))
    engine.accepts = False
    with pytest.raises(EngineUnavailable, match="no such queue"):
        regions.move_on(workspace, repo, _RUN)
    assert jobs.cancel_of_job(repo, job) is None
    engine.accepts = True
    jobs.cancel(repo, Cancel(run=_RUN, attempt=0, jobs=(job.name,), created_s=1.0))
    assert regions.move_on(workspace, repo, _RUN) is None
    assert not engine.submitted and not engine.cancelled


def test_a_next_job_that_could_not_be_submitted_is_named_with_the_way_out(
    place: tuple[Workspace, Repository, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, repo, _ = place
    engine = _engine(monkeypatch, JobState(standing="queued", reason=_CAPACITY))

    def submit(request: JobRequest, script: str) -> str:
        raise EngineUnavailable("too many requests")

    monkeypatch.setattr(engine, "submit", submit)
    with pytest.raises(EngineUnavailable, match="queue b of second: too many requests") as caught:
        regions.move_on(workspace, repo, _RUN)
    assert f"m5ws resume {_RUN} --on cloud" in caught.value.hint


def test_of_two_machines_that_move_a_job_one_submits_the_next(
    place: tuple[Workspace, Repository, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, repo, job = place
    engine = _engine(monkeypatch, JobState(standing="queued", reason=_CAPACITY))
    # The other machine moves the job after this machine has looked for a cancel.
    is_first = True

    def check(request: JobRequest, script: str) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            assert regions.move_on(workspace, repo, _RUN) is not None

    monkeypatch.setattr(engine, "check", check)
    assert regions.move_on(workspace, repo, _RUN) is None
    assert [name for name, _ in engine.submitted] == [jobs.next_name(job)]


@pytest.mark.parametrize("moment", ["check", "cancel", "publish"])
def test_a_cancel_at_any_moment_of_a_move_leaves_no_job(
    place: tuple[Workspace, Repository, Job], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    workspace, repo, _ = place
    engine = _engine(monkeypatch, JobState(standing="queued", reason=_CAPACITY))
    planted.run(repo, _RUN)
    owner, name = (jobs, "publish") if moment == "publish" else (engine, moment)
    original = getattr(owner, name)

    def during(*given: object) -> object:
        monkeypatch.setattr(owner, name, original)
        assert command_line.call("-C", str(workspace.root), "cancel", _RUN).returncode == 0
        return original(*given)

    monkeypatch.setattr(owner, name, during)
    assert regions.move_on(workspace, repo, _RUN) is None
    assert not engine.submitted and all(jobs.is_cancelled(repo, job) for job in jobs.of_run(repo, _RUN))


def test_a_move_while_a_cancel_is_written_leaves_no_job(
    place: tuple[Workspace, Repository, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, repo, _ = place
    _engine(monkeypatch, JobState(standing="queued", reason=_CAPACITY))
    planted.run(repo, _RUN)
    original = jobs.cancel

    def during(repo: Repository, request: Cancel) -> Cancel:
        # The canceller has read the jobs of the run already.
        monkeypatch.setattr(jobs, "cancel", original)
        assert regions.move_on(workspace, repo, _RUN) is not None
        return original(repo, request)

    monkeypatch.setattr(jobs, "cancel", during)
    assert command_line.call("-C", str(workspace.root), "cancel", _RUN).returncode == 0
    submitted = jobs.of_run(repo, _RUN)
    assert len(submitted) == 2 and all(jobs.is_cancelled(repo, job) for job in submitted)
