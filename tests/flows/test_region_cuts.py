"""A region is cut off in mid-run and comes back later: the run continues elsewhere, and nothing is lost or doubled.

The nodes of two regions on AWS Batch are network namespaces, and the store is an S3 server of the home network.
"""

import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from m5ws.records.ledger import State, Step
from m5ws.repository.fsck import fsck
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints, jobs
from m5ws.repository.repository import Repository
from m5ws.runs import history, state
from m5ws.workspace import find
from tests.support.campaigns import soak_page
from tests.support.faults.kills import Scale
from tests.support.machine import run_processes
from tests.support.machine.batch_queue import AWAY, HOME, QUEUE, Queue
from tests.support.s3.s3_servers import S3Server, moto
from tests.support.waiting import wait_for
from tests.support.workspace.workspaces import Workspace, make_workspace

pytestmark = pytest.mark.services
_CUTS_OF_A_RUN = 10
_PATIENCE_S = 25
"""A start of the agents and ranks takes less, unless the machine is busy. Then a job moves without a cut."""
_MOMENTS = ("the next job was submitted", "the next attempt began", "the next attempt did a step")
_HEADER = (
    "| nodes | seed | cuts | of each kind | back after | runs | attempts | states | again | late jobs | seconds |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)


@pytest.fixture(scope="module")
def home(queue: Queue, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with moto(tmp_path_factory.mktemp("home") / "log", queue.here) as server:
        yield server


@pytest.fixture
def make(
    tmp_path: Path, home: S3Server, on_batch: Callable[[Workspace], Workspace], s3_environment: None
) -> Callable[[int], Workspace]:
    """A function that makes a workspace for runs of a number of nodes. A run of one node has no process groups."""

    def workspace(nodes: int) -> Workspace:
        made = make_workspace(tmp_path / "w", "fsdp.py", nproc=1, trainer="torchrun" if nodes > 1 else "python")
        if nodes == 1:
            for line in ("fully_shard(model.up)\n", "fully_shard(model)\n", 'dist.init_process_group("gloo")\n'):
                made.edit("train.py", line, "")
            made.edit("train.py", "rank = dist.get_rank()", "rank = 0")
            made.edit("train.py", "dist.destroy_process_group()\n", "")
        made.edit("config.yaml", "hidden: 128", "hidden: 32")
        made.edit("config.yaml", "pause_s: 0.0", "pause_s: 0.4")
        made.edit("m5ws.toml", "checkpoint_every = 4", "checkpoint_every = 2")
        on_batch(made)
        made.edit("m5ws.toml", "scratch-$AWS", "scratch-$AWS_DEFAULT_REGION-$AWS")
        queues = [f'{{ queue = "{QUEUE}", region = "{region}" }}' for region in (AWAY, HOME) * (2 * _CUTS_OF_A_RUN)]
        with (made.root / "m5ws.toml").open("a") as settings:
            settings.write(
                f"patience_s = {_PATIENCE_S}\nelsewhere = [{', '.join(queues)}]\n"
                f'[store]\nurl = "s3://{home.bucket()}/team"\nendpoint_url = "{home.endpoint}"\n'
            )
        return made

    return workspace


class _Cuts:
    """Runs whose region is cut off again and again."""

    def __init__(self, workspace: Workspace, nodes: int, queue: Queue, seed: int, steps: int) -> None:
        self.workspace, self.queue, self.seed, self.draw = workspace, queue, seed, random.Random(seed)
        workspace.edit("config.yaml", "steps: 10", f"steps: {steps}")
        self.nodes, self.steps = nodes, steps
        self.repo = find(workspace.root).repository(create=True, near=False)
        whole = workspace.train("--nproc", str(nodes), "--checkpoint-every", "1")
        self.expected, self.contents = _states(self.repo, whole), history.load(self.repo, whole).contents
        self.kinds, self.moments = Counter[str](), Counter[str]()
        self.done = self.runs = self.attempts = self.compared = self.again = self.late = 0
        self.began_s = time.monotonic()

    def run(self, cuts: int) -> None:
        """Train one run, with a number of cuts, and judge it."""
        run = self.workspace.json("run", "--on", "cloud", "--nodes", str(self.nodes))["run"]["id"]
        waiting = self.workspace.start("wait", run)
        try:
            attempt = 0
            for _ in range(cuts):
                attempt = self._cut(run, attempt, waiting)
            wait_for(lambda: waiting.poll() is not None)
            output, _ = waiting.communicate()
            assert waiting.returncode == 0, output
            assert output.count("was silent for") >= cuts, output
        finally:
            waiting.kill()
            waiting.wait()
        self.runs += 1
        self._judge(run)

    def _cut(self, run: str, after: int, waiting: "subprocess.Popen[str]") -> int:
        """Cut off the region of an attempt after an attempt, and connect it again at a drawn moment. Return its number.

        It has done a step of its own.
        """
        wait_for(lambda: self._has_step(run, after + 1) or waiting.poll() is not None)
        assert waiting.poll() is None, waiting.communicate()[0]
        time.sleep(self.draw.uniform(0, 1.5))
        submitted, attempt = jobs.of_run(self.repo, run), max(ledger.attempts(self.repo, run))
        region = _region(submitted[-1])
        peers, silent, moment = self.draw.random() < 0.5, self.draw.random() < 0.5, self.draw.randrange(3)
        kind = f"{'all links' if peers else 'the links home'}{', and Batch is silent' if silent else ''}"
        print(f"{time.monotonic() - self.began_s:6.0f} s, attempt {attempt} in {region}: {kind}, {_MOMENTS[moment]}")
        self.queue.silence(region, silent=silent)
        self.queue.cut(region, peers=peers)
        try:
            wait_for(lambda: len(jobs.of_run(self.repo, run)) > len(submitted))
            if moment > 0:
                wait_for(lambda: max(ledger.attempts(self.repo, run)) > attempt)
            if moment > 1:
                wait_for(lambda: self._has_step(run, attempt + 1))
        finally:
            self.queue.mend(region)
            self.queue.silence(region, silent=False)
        self.kinds[kind] += 1
        self.moments[_MOMENTS[moment]] += 1
        self.done += 1
        return attempt

    def _has_step(self, run: str, attempt: int) -> bool:
        """Return True if an attempt has done a step of its own, or a later attempt has."""
        newest = state.load_newest(self.repo, run).newest
        if newest is None or newest.attempt < attempt:
            return False
        begun = checkpoints.step_of(newest.resume) if newest.resume is not None else 0
        return newest.last_step > begun

    def _judge(self, run: str) -> None:
        submitted = jobs.of_run(self.repo, run)
        assert [_region(job) for job in submitted] == [(HOME, AWAY)[number % 2] for number in range(len(submitted))]
        ended = [self._ended(job) for job in submitted]
        assert [job["status"] for job in ended] == ["FAILED"] * (len(submitted) - 1) + ["SUCCEEDED"]
        while run_processes.commands(run):
            time.sleep(0.2)
        attempts = state.load(self.repo, run).attempts
        standings = [attempt.standing for attempt in attempts]
        assert standings.count("finished") == 1 and standings[-1] == "finished"
        finished_s = ledger.newest_s(self.repo, run, len(attempts))
        self.late += sum(job["stoppedAt"] / 1000 > finished_s for job in ended[:-1])
        for attempt in attempts:
            self._judge_resume(run, attempt.attempt, attempt.resume)
            begun = checkpoints.step_of(attempt.resume) if attempt.resume is not None else 0
            for steps in _steps(self.repo, run, attempt.attempt).values():
                assert steps == [*range(begun + 1, begun + 1 + len(steps))]
                self.again += len(steps)
        judged = history.load(self.repo, run)
        assert {rank: [*steps] for rank, steps in judged.steps.items()} == {
            rank: [*range(1, self.steps + 1)] for rank in range(self.nodes)
        }
        found = _states(self.repo, run)
        assert found == self.expected
        assert (
            judged.contents == {step: self.contents[step] for step in judged.contents} and self.steps in judged.contents
        )
        assert fsck.check(self.repo, read_data=True).damage == ()
        self.again -= self.nodes * self.steps
        self.attempts += len(attempts)
        self.compared += len(found)

    def _ended(self, job: Any) -> Any:
        """Return a job as Batch describes it, after its end."""
        client = self.queue.client(region=_region(job))
        (listed,) = client.list_jobs(jobQueue=QUEUE, filters=[{"name": "JOB_NAME", "values": [job.name]}])[
            "jobSummaryList"
        ]
        wait_for(lambda: client.describe_jobs(jobs=[listed["jobId"]])["jobs"][0]["status"] in ("SUCCEEDED", "FAILED"))
        return client.describe_jobs(jobs=[listed["jobId"]])["jobs"][0]

    def _judge_resume(self, run: str, attempt: int, resume: str | None) -> None:
        """An attempt begins at the last checkpoint, and no checkpoint is missing that is older than its job.

        Agents plan their attempt some seconds before they publish its start. A region that comes back in these seconds
        may still publish a checkpoint, which is fenced then.
        """
        inherits = checkpoints.inherited(self.repo, run, attempt)
        assert resume == max(inherits, default=None)
        began_s = min(stat.modified_s for stat in self.repo.store.list(f"runs/{run}/ledger/{attempt:04d}/"))
        job_s = max(job.created_s for job in jobs.of_run(self.repo, run) if job.created_s <= began_s)
        for stat in self.repo.store.list(f"runs/{run}/checkpoints/"):
            name = stat.key.rpartition("/")[2]
            # The server's times are whole seconds. Checkpoints of earlier attempts may have been fenced before.
            if checkpoints.attempt_of(name) == attempt - 1 and stat.modified_s < job_s - 1:
                assert name in inherits

    def row(self) -> str:
        def text(counter: Counter[str]) -> str:
            return ", ".join(f"{count} × {name}" for name, count in sorted(counter.items()))

        counts = (self.runs, self.attempts, self.compared, self.again, self.late)
        drawn = (self.nodes, self.seed, self.done, text(self.kinds), text(self.moments))
        cells = (*drawn, *counts, f"{time.monotonic() - self.began_s:,.0f}")
        return "| " + " | ".join(map(str, cells)) + " |"


def _region(job: Any) -> str:
    return str(json.loads(job.settings)["clusters"]["cloud"]["region"])


def _steps(repo: Repository, run: str, attempt: int) -> dict[str, list[int]]:
    """Return the steps of each rank in an attempt, as its ledger has them."""
    found: dict[str, list[int]] = {}
    for origin, event in ledger.read_events(repo, run, attempt):
        if isinstance(event, Step):
            found.setdefault(origin, []).append(event.step)
    return found


def _states(repo: Repository, run: str) -> dict[tuple[str, int], object]:
    """Return the fingerprints of all ranks after each step, which are the same in all attempts."""
    found: dict[tuple[str, int], object] = {}
    for attempt in ledger.attempts(repo, run):
        for origin, event in ledger.read_events(repo, run, attempt):
            if isinstance(event, State):
                key, value = (origin, event.step), (event.tensors, event.generators)
                assert found.setdefault(key, value) == value, f"rank {origin} did step {event.step} with other bits"
    return found


def test_cut_regions_leave_the_bits_of_an_undisturbed_run(make: Callable[[int], Workspace], queue: Queue) -> None:
    cuts = _Cuts(make(1), 1, queue, seed=48, steps=24)
    cuts.run(2)
    print(cuts.row())


@pytest.mark.soak
@pytest.mark.timeout(14400)
@pytest.mark.parametrize(("nodes", "number"), [(1, 30), (2, 20)])
def test_fifty_cuts_of_regions_lose_and_double_nothing(
    make: Callable[[int], Workspace], queue: Queue, request: pytest.FixtureRequest, nodes: int, number: int
) -> None:
    count = request.config.getoption("--campaign-count")
    scale = Scale(count or number, soak=count is None)
    seed = request.config.getoption("--campaign-seed") or scale.seed()
    cuts = _Cuts(make(nodes), nodes, queue, seed, steps=60)
    while cuts.done < scale.kills:
        cuts.run(min(_CUTS_OF_A_RUN, scale.kills - cuts.done))
        print(cuts.row(), flush=True)
        if scale.soak:
            soak_page.put("regions", _HEADER, cuts.row(), cells=2)
