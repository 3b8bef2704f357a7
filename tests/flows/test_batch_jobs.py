"""Jobs of AWS Batch on moto's API, with a network namespace for each node. Nothing of this ran on AWS."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from m5ws import workspace as workspaces
from m5ws.repository.fsck import fsck
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints, jobs
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import closure
from m5ws.runs import state
from tests.support.machine import batch_queue
from tests.support.machine.batch_queue import Queue
from tests.support.network.counting_line import CountingLine
from tests.support.s3.s3_servers import moto
from tests.support.waiting import wait_for
from tests.support.workspace.workspaces import Workspace, make_workspace

pytestmark = pytest.mark.services


class _WithBucket(Workspace, frozen=True):
    """A workspace whose store is not in a directory."""

    @property
    def repo(self) -> Repository:
        return workspaces.find(self.root).repository()


@pytest.mark.parametrize("kind", ["fsdp", "zero"])
def test_two_nodes_of_two_ranks_have_the_bits_of_one_machine_and_are_reproduced_there(
    tmp_path: Path,
    queue: Queue,
    on_batch: Callable[[Workspace], Workspace],
    s3_environment: None,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    trainer = "deepspeed" if kind == "zero" else "torchrun"
    workspace = on_batch(make_workspace(tmp_path / "w", f"{kind}.py", nproc=2, trainer=trainer))
    with ExitStack() as stack:
        if kind == "zero":
            server = stack.enter_context(moto(tmp_path / "s3.log", queue.here))
            with (workspace.root / "m5ws.toml").open("a") as settings:
                settings.write(f'[store]\nurl = "s3://{server.bucket()}/team"\nendpoint_url = "{server.endpoint}"\n')
            workspace = _WithBucket(workspace.root)
        _compare_with_one_machine(workspace, monkeypatch)


def _compare_with_one_machine(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    run = workspace.json("run", "--on", "cloud", "--nodes", "2")["run"]["id"]
    assert workspace.json("wait", run)["standing"] == "finished"
    alone = workspace.json("run", "--nproc", "4")["run"]["id"]
    expected = workspace.states(alone)
    assert expected[1].keys() == {0, 1, 2, 3} and workspace.states(run) == expected
    assert [start.node for start in ledger.node_starts(workspace.repo, run, 1)] == [0, 1]
    # Outside of the image, nothing is comparable.
    assert workspace.json("reproduce", run, expect=2)["outcome"] == "not comparable"
    monkeypatch.setenv("M5WS_CONTAINER_IMAGE", batch_queue.IMAGE)
    assert workspace.json("reproduce", run)["outcome"] == "reproduced"
    assert fsck.check(workspace.repo, read_data=True).damage == ()


def test_a_dead_child_node_ends_the_attempt_and_the_job_continues_from_a_checkpoint(
    tmp_path: Path, queue: Queue, on_batch: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_batch(make_workspace(tmp_path / "w", "fsdp.py", nproc=1))
    workspace.edit("config.yaml", "pause_s: 0.0", "pause_s: 0.5")
    workspace.edit("config.yaml", "steps: 10", "steps: 14")
    submitted = workspace.json("run", "--on", "cloud", "--nodes", "2")
    run, name = submitted["run"]["id"], submitted["job"]["name"]
    wait_for(lambda: _last_step(workspace, run) >= 5)
    os.kill(int((queue.folder / f"{name}-1-1.pid").read_text()), signal.SIGKILL)
    killed_s = time.time()
    assert workspace.json("wait", run)["standing"] == "finished"
    first, second = state.load(workspace.repo, run).attempts
    assert first.reason is not None and first.reason.kind == "node lost" and first.ended_s is not None
    print(f"the attempt ended {first.ended_s - killed_s:.1f} s after the kill")
    assert second.resume is not None and checkpoints.step_of(second.resume) >= 4
    wait_for(lambda: queue.describe(submitted["id"])["status"] == "SUCCEEDED")
    attempts = queue.describe(submitted["id"])["attempts"]
    assert len(attempts) == 2
    print(f"Batch saw its end {attempts[0]['stoppedAt'] / 1000 - killed_s:.1f} s after the kill")
    assert fsck.check(workspace.repo).damage == ()


def test_instances_that_are_taken_away_leave_a_last_checkpoint_and_the_job_continues(
    tmp_path: Path, queue: Queue, on_batch: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_batch(make_workspace(tmp_path / "w", "fsdp.py", nproc=1))
    workspace.edit("config.yaml", "pause_s: 0.0", "pause_s: 0.5")
    workspace.edit("config.yaml", "steps: 10", "steps: 14")
    submitted = workspace.json("run", "--on", "cloud", "--nodes", "2")
    run = submitted["run"]["id"]
    wait_for(lambda: _last_step(workspace, run) >= 5)
    queue.take_instances()
    assert workspace.json("wait", run)["standing"] == "finished"
    first, second = state.load(workspace.repo, run).attempts
    assert first.reason is not None and (first.reason.kind, first.reason.signal) == ("stopped", "SIGTERM")
    # Not of a step that `checkpoint_every` divides, but of the last step.
    assert second.resume is not None and checkpoints.step_of(second.resume) == first.last_step
    assert len(queue.describe(submitted["id"])["attempts"]) == 2 and fsck.check(workspace.repo).damage == ()


def test_a_failed_script_on_a_child_node_fails_the_job_once(
    tmp_path: Path, queue: Queue, on_batch: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_batch(make_workspace(tmp_path / "w", "fsdp.py", nproc=1))
    workspace.edit("train.py", "step.next_batch()", "step.next_batch() if rank == 0 else 1 / 0")
    submitted = workspace.json("run", "--on", "cloud", "--nodes", "2")
    assert workspace.json("wait", submitted["run"]["id"], expect=1)["standing"] == "failed"
    wait_for(lambda: queue.describe(submitted["id"])["status"] == "FAILED")
    assert len(queue.describe(submitted["id"])["attempts"]) == 1


def test_a_waiting_job_is_shown_with_its_reason_and_removed_by_a_cancel(
    tmp_path: Path, queue: Queue, on_batch: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_batch(make_workspace(tmp_path / "w", "fsdp.py", nproc=1))
    dry = json.loads(workspace.m5ws("run", "--on", "cloud", "--dry-run").stdout)
    assert dry["definition"]["type"] == "multinode" and not list(workspace.repo.store.list(jobs.PREFIX))
    assert "batch accepts jobs of 1 node" in workspace.m5ws("doctor", expect=None).stdout
    queue.hold("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY")
    try:
        submitted = workspace.json("run", "--on", "cloud")
        run = submitted["run"]["id"]
        wait_for(lambda: "because CAPACITY" in workspace.m5ws("show", run).stdout)
        shown = workspace.m5ws("show", run).stdout
        assert "queued since" in shown and "INSUFFICIENT_INSTANCE_CAPACITY; place 1 in the queue" in shown
        assert workspace.json("cancel", run)["unqueued"] == [submitted["job"]["name"]]
        wait_for(lambda: queue.describe(submitted["id"])["status"] == "FAILED")
    finally:
        queue.release()
    assert workspace.json("wait", run, expect=130)["standing"] == "created"
    assert not ledger.attempts(workspace.repo, run)


def test_a_job_without_nodes_moves_to_the_next_region_and_its_late_agents_begin_nothing(
    tmp_path: Path, queue: Queue, on_batch: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_batch(make_workspace(tmp_path / "w", "fsdp.py", nproc=1))
    with (workspace.root / "m5ws.toml").open("a") as settings:
        settings.write(f'elsewhere = [{{ queue = "{batch_queue.QUEUE}", region = "{batch_queue.AWAY}" }}]\n')
    queue.hold("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY")
    try:
        submitted = workspace.json("run", "--on", "cloud", "--nodes", "2", "--env", "warn")
        run, first = submitted["run"]["id"], submitted["job"]
        waited = workspace.m5ws("wait", run)
        assert f"in queue {batch_queue.QUEUE} of {batch_queue.AWAY}" in waited.stderr
        assert queue.describe(submitted["id"])["status"] == "FAILED" and not queue.describe(submitted["id"])["attempts"]
    finally:
        queue.release()
    before, then = jobs.of_run(workspace.repo, run)
    assert (before.name, then.name) == (first["name"], jobs.next_name(before)) and then.options == ("--env", "warn")
    (attempt,) = state.load(workspace.repo, run).attempts
    assert attempt.standing == "finished"
    # An agent of the first job that its region starts late.
    (override,) = json.loads(before.script)["job"]["nodeOverrides"]["nodePropertyOverrides"]
    command = override["containerOverrides"]["command"]
    place = {"M5WS_NODE": "0", "M5WS_NODES": "2", "M5WS_MASTER": "127.0.0.1:29000", "M5WS_JOB": "late"}
    place["AWS_BATCH_JOB_NODE_INDEX"] = "0"
    late = subprocess.run(command, env=os.environ | place, capture_output=True, text=True, timeout=240)
    assert late.returncode == 130 and "was cancelled" in late.stderr
    assert ledger.attempts(workspace.repo, run) == [1] and fsck.check(workspace.repo).damage == ()


def _last_step(workspace: Workspace, run: str) -> int:
    newest = state.load_newest(workspace.repo, run).newest
    return newest.last_step if newest is not None else 0


def test_bytes_that_cross_regions_are_printed_before_and_counted_as_a_line_measures_them(
    tmp_path: Path, queue: Queue, on_batch: Callable[[Workspace], Workspace], s3_environment: None
) -> None:
    workspace = on_batch(make_workspace(tmp_path / "w", "fsdp.py", nproc=1))
    workspace.edit("config.yaml", "hidden: 128", "hidden: 512")
    workspace.edit("m5ws.toml", f'region = "{batch_queue.HOME}"', f'region = "{batch_queue.AWAY}"')
    workspace.edit("m5ws.toml", "scratch-", "scratch-crossing-")
    (workspace.root / "data" / "noise").write_bytes(random.Random(5).randbytes(8 * 2**20))
    nodes = queue.addresses[batch_queue.AWAY]
    with moto(tmp_path / "s3.log") as server, CountingLine(server.endpoint.removeprefix("http://"), queue.here) as line:
        with (workspace.root / "m5ws.toml").open("a") as settings:
            settings.write(f'[store]\nurl = "s3://{server.bucket()}/team"\nendpoint_url = "{line.endpoint}"\n')
        submitted = workspace.json("run", "--on", "cloud", "--nodes", "2")
        run, first = submitted["run"]["id"], submitted["crossing"]
        assert (first["region"], first["here"], first["save_bytes"]) == (batch_queue.HOME, batch_queue.AWAY, None)
        assert workspace.json("wait", run)["standing"] == "finished"
        measured = line.size_bytes(*nodes)
        repo = workspaces.find(workspace.root).repository()
        sizes = [
            sum(closure.of_checkpoint(repo, checkpoints.digest(repo, run, label)).values())
            for label in checkpoints.valid(repo, run)
        ]
        (row,) = workspace.json("du")["runs"]
        predicted = 2 * first["snapshot_bytes"] + sum(sizes)
        print(f"measured {measured:,}, counted {row['crossed_bytes']:,}, predicted {predicted:,} bytes")
        assert row["crossed_bytes"] == pytest.approx(measured, rel=0.05)
        assert predicted == pytest.approx(measured, rel=0.05)
        assert "between eu-west-1 and us-east-1" in workspace.m5ws("show", run).stdout
        # A save is known now.
        printed = workspace.m5ws("fork", f"{run}@8", "--on", "cloud", "--dry-run")
        assert printed.returncode == 0
        fork = workspace.json("fork", f"{run}@8", "--on", "cloud", "--nodes", "2")
        assert fork["crossing"]["save_bytes"] == fork["crossing"]["resume_bytes"] == sizes[-2]
        assert workspace.json("wait", fork["run"]["id"])["standing"] == "finished"


def test_data_is_prefetched_into_the_cache_of_a_cluster_from_which_a_run_reads_it(
    tmp_path: Path, queue: Queue, on_batch: Callable[[Workspace], Workspace], s3_environment: None
) -> None:
    workspace = on_batch(make_workspace(tmp_path / "w", "reading.py", trainer="python", nproc=1))
    size_bytes = 0
    with moto(tmp_path / "s3.log", queue.here) as server:
        client, bucket = server.client(), server.bucket()
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        for file in range(3):
            lines = "".join(json.dumps({"value": file + row, "text": "x" * 10_000}) + "\n" for row in range(40))
            size_bytes += len(lines)
            client.put_object(Bucket=bucket, Key=f"docs/part-{file}.jsonl", Body=lines.encode())
        workspace.edit("m5ws.toml", f'region = "{batch_queue.HOME}"', f'region = "{batch_queue.AWAY}"')
        cluster = f'cache = "{tmp_path}/CACHE"\n'
        data = f'[[data.s3]]\npath = "data/docs"\nurl = "s3://{bucket}/docs"\nendpoint_url = "{server.endpoint}"\n'
        workspace.edit("m5ws.toml", 'shared = ["', cluster + 'shared = ["')
        with (workspace.root / "m5ws.toml").open("a") as settings:
            settings.write(data)
        snapshot = workspace.json("snapshot")["id"]
        for cache, is_full in (("far", False), ("near", True)):
            workspace.edit("m5ws.toml", "CACHE" if cache == "far" else "/far", cache if cache == "far" else "/near")
            if is_full:
                job = workspace.json("prefetch", snapshot, "--on", "cloud")
                wait_for(partial(_has_ended, queue, job["id"]))
                assert len([*(tmp_path / cache).rglob("*")]) > 3
            submitted = workspace.json("run", snapshot, "--on", "cloud")
            run = submitted["run"]["id"]
            assert submitted["crossing"]["data"] == {"data/docs": [batch_queue.HOME, size_bytes]}
            assert workspace.json("wait", run)["standing"] == "finished"
            (attempt,) = state.load(workspace.repo, run).attempts
            read = [(each.region, each.here, each.read_bytes) for each in attempt.moved]
            assert read == ([] if is_full else [(batch_queue.HOME, batch_queue.AWAY, size_bytes)])
            row = next(each for each in workspace.json("du")["runs"] if each["run"] == run)
            assert (row["remote_bytes"], row["crossed_bytes"]) == (size_bytes, 0 if is_full else size_bytes)


def _has_ended(queue: Queue, job: str) -> bool:
    described = queue.describe(job, batch_queue.AWAY)
    assert described["status"] != "FAILED"
    return bool(described["status"] == "SUCCEEDED")
