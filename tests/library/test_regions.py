"""A job of AWS Batch without nodes, or in a silent region, moves to the next queue, once, and never after a cancel."""

import dataclasses
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from m5ws import workspace as workspaces
from m5ws.config.settings import BatchCluster, BatchQueue, Settings
from m5ws.engines import submission
from m5ws.engines.interface import EngineUnavailable, JobRequest, JobState
from m5ws.library import clusters, regions
from m5ws.records.job import Cancel, Job
from m5ws.records.ledger import NODE, AttemptEnded
from m5ws.repository.references import jobs
from m5ws.repository.repository import Repository
from m5ws.runs import liveness, state
from m5ws.workspace import Workspace
from tests.support.records import planted
from tests.support.workspace import command_line

_RUN = "7c1d0a9b8e2f"
_CAPACITY = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY; place 1 in the queue"
_BY_QUEUE = "Canceled by JobStateTimeLimit action due to reason: CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY"
"""The reason of a job that its queue ended (job_stuck_in_runnable_capacity in Batch's guide)."""


_CLUSTER = BatchCluster(
    region="first", queue="a", image=f"a@sha256:{'a' * 64}", cpus_per_node=1, memory_mib=64, patience_s=1000,
    elsewhere=(BatchQueue(queue="b", region="second"), BatchQueue(queue="c", region="third")),
)  # fmt: skip


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

    def submit(self, request: JobRequest, script: str, after: str | None = None) -> str:
        self.submitted.append((request.name, self.region))
        return f"id of {request.name}"

    def cancel(self, name: str) -> None:
        self.cancelled.append(name)


@pytest.fixture
def place(tmp_path: Path) -> tuple[Workspace, Repository, Job]:
    return _published(tmp_path, _CLUSTER)


def _published(tmp_path: Path, cluster: BatchCluster) -> tuple[Workspace, Repository, Job]:
    (tmp_path / "m5ws.toml").write_text("")
    workspace = workspaces.find(tmp_path)
    repo = workspace.repository(create=True)
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
        (JobState(standing="queued", text="RUNNABLE"), 1001, True),
        (JobState(standing="queued", text="RUNNABLE", reason=_CAPACITY), 0, True),
        (JobState(standing="ended", text="FAILED", reason=_CAPACITY), 0, True),
        (JobState(standing="ended", text="FAILED", reason=_BY_QUEUE), 0, True),
        # Its agents may not have reached the store.
        (JobState(standing="ended", text="FAILED", reason="Essential container in task exited"), 0, True),
        (JobState(standing="running", text="RUNNING"), 999, False),
        (JobState(standing="running", text="RUNNING"), 1001, True),
        # Its submitter was killed, or Batch does not list it yet.
        (JobState(standing="unknown"), 99, False),
        (JobState(standing="unknown"), 1001, True),
        (None, 999, False),
        (None, 1001, True),
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
        then = jobs.of_run(repo, _RUN)[-1]
        assert (then.options, then.nodes) == (("--env", "warn"), 2) and moved.endswith("in queue b of second")


def test_a_job_moves_through_all_queues_and_stays_in_the_last(
    place: tuple[Workspace, Repository, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, repo, _ = place
    engine = _engine(monkeypatch, JobState(standing="queued", reason=_CAPACITY))
    now = repo.store.now()
    times = iter(range(1, 100))
    monkeypatch.setattr(type(repo.store), "now", lambda _: now + next(times))
    moves = [regions.move_on(workspace, repo, _RUN) for _ in range(4)]
    assert [moved and moved.partition(" in ")[2] for moved in moves] == [
        "queue b of second",
        "queue c of third",
        None,
        None,
    ]
    assert [region for _, region in engine.submitted] == ["second", "third"]
    names = [job.name for job in jobs.of_run(repo, _RUN)]
    # All jobs but the last begin no attempt any more.
    assert [name for name in names if any(name in each.jobs for each in jobs.cancels(repo, _RUN))] == names[:-1]


@pytest.mark.parametrize("accepting", [("b", "c"), ("c",), ()])
def test_a_queue_that_takes_no_job_is_left_out(
    place: tuple[Workspace, Repository, Job], monkeypatch: pytest.MonkeyPatch, accepting: tuple[str, ...]
) -> None:
    workspace, repo, job = place
    engine = _engine(monkeypatch, JobState(standing="queued", reason=_CAPACITY))

    def check(request: JobRequest, script: str) -> None:
        if {"second": "b", "third": "c"}[engine.region or ""] not in accepting:
            raise EngineUnavailable(f"the region {engine.region} does not answer")

    monkeypatch.setattr(engine, "check", check)
    if accepting:
        assert f"in queue {accepting[0]} of" in str(regions.move_on(workspace, repo, _RUN))
        (then,) = [each for each in jobs.of_run(repo, _RUN) if each.name != job.name]
        assert engine.submitted[0][0] == then.name == jobs.next_name(job)
    else:
        with pytest.raises(EngineUnavailable, match="second does not answer"):
            regions.move_on(workspace, repo, _RUN)
        assert jobs.cancel_of_job(repo, job) is None and not engine.submitted


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


class _Killed(BaseException):
    """The end of a process, at a call."""


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("moment", ["request", "cancel", "publish", "submit"])
def test_a_move_is_completed_once_after_a_kill_of_its_mover_at_any_moment(
    place: tuple[Workspace, Repository, Job], monkeypatch: pytest.MonkeyPatch, moment: str, is_done: bool
) -> None:
    workspace, repo, job = place
    engine = _engine(monkeypatch, None)
    waits = JobState(standing="queued", text="RUNNABLE")

    def answer(name: str) -> JobState:
        if name == job.name:
            is_cancelled = name in engine.cancelled
            return JobState(standing="ended" if is_cancelled else "queued", reason="" if is_cancelled else _CAPACITY)
        return waits if name in dict(engine.submitted) else JobState(standing="unknown")

    monkeypatch.setattr(engine, "state", answer)
    begun, passed_s = repo.store.now(), 0.0
    monkeypatch.setattr(type(repo.store), "now", lambda _: begun + passed_s)
    owner, name = (
        (jobs, {"request": "cancel"}.get(moment, moment)) if moment in ("request", "publish") else (engine, moment)
    )
    original = getattr(owner, name)

    def killed(*given: object) -> None:
        if is_done:
            original(*given)
        raise _Killed

    monkeypatch.setattr(owner, name, killed)
    with pytest.raises(_Killed):
        regions.move_on(workspace, repo, _RUN)
    monkeypatch.setattr(owner, name, original)
    for _ in range(4):
        # `m5ws wait` goes on, and no other job may be submitted meanwhile.
        assert not liveness.look(workspace.settings, repo, state.load_newest(repo, _RUN))[0]
        regions.move_on(workspace, repo, _RUN)
        passed_s += 61
    # The name of a published job that nobody submitted is left, because its submission may only be late.
    published = jobs.of_run(repo, _RUN)
    assert len(published) == (3 if (moment, is_done) in (("publish", True), ("submit", False)) else 2)
    assert engine.submitted == [(published[-1].name, "second")] and job.name in engine.cancelled
    assert [each.name for each in published[1:]] == [*map(jobs.next_name, published[:-1])]


@pytest.mark.parametrize(
    ("started_s", "own", "outcome", "moves"),
    [
        (1.0, False, None, False),  # Somebody has resumed the run without a job, and it goes on.
        (1.0, False, "failed", False),
        (-1.0, False, "failed", True),  # Before the job was submitted.
        (1.0, True, "failed", True),
        (1.0, True, None, True),
        (-1.0, False, "finished", False),
        (1.0, True, "finished", False),
    ],
)
@pytest.mark.parametrize("is_moving", [False, True])
@pytest.mark.parametrize("skew_s", [-7200.0, 7200.0])
def test_a_job_moves_no_run_that_has_finished_or_goes_on_without_it(
    place: tuple[Workspace, Repository, Job],
    monkeypatch: pytest.MonkeyPatch,
    started_s: float,
    own: bool,
    outcome: Literal["failed", "finished"] | None,
    moves: bool,
    is_moving: bool,
    skew_s: float,
) -> None:
    workspace, repo, job = place
    engine = _engine(monkeypatch, JobState(standing="ended", reason=_CAPACITY))
    planted.run(repo, _RUN)
    # The clocks of the machine and of the store differ.
    planted.begin(repo, _RUN, job_name=job.name if own else None, time_s=job.created_s + skew_s)
    planted.date(repo, _RUN, 1, job.created_s + started_s)
    if outcome is not None:
        planted.append(repo, _RUN, 1, NODE, AttemptEnded(outcome=outcome, exit_code=1, heads={}))
    if is_moving:
        then = jobs.next_name(job)
        jobs.cancel(repo, Cancel(run=_RUN, attempt=0, jobs=(job.name,), created_s=1.0, next=then))
    assert (regions.move_on(workspace, repo, _RUN) is not None) == moves == bool(engine.submitted)
    ended, _ = liveness.look(workspace.settings, repo, state.load_newest(repo, _RUN))
    assert moves or ended == (outcome is not None)


def test_a_first_job_is_submitted_after_a_kill_of_its_submitter(
    place: tuple[Workspace, Repository, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, repo, job = place
    engine = _engine(monkeypatch, JobState(standing="unknown"))
    now = repo.store.now()
    for age_s, submitted in ((119, []), (121, [(jobs.next_name(job), "first")])):
        monkeypatch.setattr(type(repo.store), "now", lambda _, age_s=age_s: now + age_s)
        moved = regions.move_on(workspace, repo, _RUN)
        assert engine.submitted == submitted and (moved is not None) == bool(submitted)
    then = jobs.of_run(repo, _RUN)[-1]
    jobs.cancel(repo, Cancel(run=_RUN, attempt=0, jobs=(then.name,), created_s=1.0))
    assert regions.move_on(workspace, repo, _RUN) is None and engine.submitted == submitted


@pytest.mark.parametrize("elsewhere", [0, 2])
@pytest.mark.parametrize("listed_after_s", [7, 200])
@pytest.mark.parametrize("lost", [(), (0, 1)])
def test_two_machines_and_lost_answers_submit_each_name_once_and_leave_one_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: int, listed_after_s: int, lost: tuple[int, ...]
) -> None:
    workspace, repo, job = _published(
        tmp_path, msgspec.structs.replace(_CLUSTER, elsewhere=_CLUSTER.elsewhere[:elsewhere])
    )
    engine, begun, passed_s = _engine(monkeypatch, None), repo.store.now(), 0
    times: dict[str, int] = {}
    monkeypatch.setattr(type(repo.store), "now", lambda _: begun + passed_s)

    def answer(name: str) -> JobState:
        is_listed = name in times and passed_s - times[name] >= listed_after_s
        return JobState(standing="queued", text="RUNNABLE") if is_listed else JobState(standing="unknown")

    def submit(request: JobRequest, script: str) -> str:
        assert request.name not in times
        times[request.name] = passed_s
        if len(times) - 1 in lost:
            raise EngineUnavailable("the answer was lost")
        return "id"

    monkeypatch.setattr(engine, "state", answer)
    monkeypatch.setattr(engine, "submit", submit)
    for _ in range(150):
        for _ in ("here", "there"):
            with suppress(EngineUnavailable):
                regions.move_on(workspace, repo, _RUN)
        passed_s += 5
    able = [each.name for each in jobs.of_run(repo, _RUN) if jobs.cancel_of_job(repo, each) is None]
    assert len(able) == 1 and (able[0] in times or listed_after_s > 120) and job.name not in times


def test_an_error_of_a_submission_cancels_its_job_so_that_late_agents_begin_nothing(
    place: tuple[Workspace, Repository, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, repo, _ = place
    shared = msgspec.structs.replace(_CLUSTER, shared=(str(workspace.root),))
    settings = msgspec.structs.replace(workspace.settings, clusters={"cloud": shared})
    engine = _engine(monkeypatch, JobState(standing="unknown"))

    def submit(*_: object) -> str:
        raise EngineUnavailable("the answer was lost")

    monkeypatch.setattr(engine, "submit", submit)
    cluster = clusters.Cluster(dataclasses.replace(workspace, settings=settings), "cloud")
    assert [queue.region for queue in cluster.queues] == ["second", "third"]
    with pytest.raises(EngineUnavailable, match="the answer was lost"):
        cluster.start(repo, cluster.plan(_RUN, 1))
    newest = jobs.of_run(repo, _RUN)[-1]
    cancel = jobs.cancel_of_job(repo, newest)
    assert cancel is not None and cancel.problem == "the answer was lost" and jobs.is_cancelled(repo, newest)
    # Another job may be submitted at once.
    assert liveness.find_alive(settings, repo, [newest]) == (None, "")


def test_a_next_job_that_could_not_be_submitted_waits_for_its_submission(
    place: tuple[Workspace, Repository, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, repo, _ = place
    engine = _engine(monkeypatch, JobState(standing="queued", reason=_CAPACITY))

    def submit(request: JobRequest, script: str) -> str:
        raise EngineUnavailable("too many requests")

    monkeypatch.setattr(engine, "submit", submit)
    with pytest.raises(EngineUnavailable, match="too many requests"):
        regions.move_on(workspace, repo, _RUN)
    # `m5ws wait` goes on, and submits it later.
    found = state.load_newest(repo, _RUN)
    monkeypatch.setattr(engine, "state", lambda _: JobState(standing="unknown"))
    assert not liveness.look(workspace.settings, repo, found)[0]


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


@pytest.mark.parametrize("moment", ["check", "cancel", "publish", "submit"])
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
    assert {name for name, _ in engine.submitted} <= {*engine.cancelled}
    assert all(jobs.is_cancelled(repo, job) for job in jobs.of_run(repo, _RUN))


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


@pytest.mark.parametrize("settings", ["", "[]", "{}", '{"from": "another version"}'])
def test_a_cancel_removes_each_job_beside_a_job_of_another_version(
    place: tuple[Workspace, Repository, Job], monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    workspace, repo, job = place
    engine = _engine(monkeypatch, JobState(standing="queued"))
    planted.run(repo, _RUN)
    fields = msgspec.structs.asdict(job)
    for number, created_s in ((2, job.created_s - 1), (3, job.created_s + 1)):
        changed = {"name": f"m5ws-{_RUN}-{number}", "settings": settings, "created_s": created_s}
        jobs.publish(repo, Job(**fields | changed))
    assert command_line.call("-C", str(workspace.root), "cancel", _RUN).returncode == 0
    assert engine.cancelled == [job.name] and all(jobs.is_cancelled(repo, each) for each in jobs.of_run(repo, _RUN))
