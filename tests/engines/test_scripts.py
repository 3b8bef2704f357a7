"""The job of an engine: its options, and when it starts the agents again. A shell runs the rendered script."""

import os
import subprocess
from pathlib import Path

import pytest

from m5ws.config.settings import HostsCluster, SlurmCluster
from m5ws.engines.hosts import Hosts
from m5ws.engines.interface import EngineUnavailable, JobRequest
from m5ws.engines.slurm import Slurm

_RUN = "7c1d0a9b8e2f"


def _request(tmp_path: Path, nodes: int = 2) -> JobRequest:
    """Return a job whose agent notes the place of its node, and ends with the next of the listed statuses."""
    agent = tmp_path / "agent.sh"
    agent.write_text(
        f'echo "$M5WS_MASTER $M5WS_NODE" >> {tmp_path}/starts\n'
        f"status=$(head -n 1 {tmp_path}/statuses); sed -i 1d {tmp_path}/statuses; exit $status\n"
    )
    return JobRequest(name=f"m5ws-{_RUN}-1", run=_RUN, nodes=nodes, agent=("bash", str(agent)))


def _programs(tmp_path: Path, *, preempted: bool, state: str) -> dict[str, str]:
    """Return the variables for a script of Slurm, with programs that answer as Slurm's do."""
    folder = tmp_path / "bin"
    folder.mkdir()
    time = "2026-11-29T02:08:08" if preempted else "None"
    answers = {
        "srun": 'while [ "$1" != bash ]; do shift; done; "$@"; status=$?; exit $status',
        "scontrol": f"""case $1 in
            show) [ $2 = hostnames ] && echo n1 && exit
                  echo "JobId=7 JobState={state} PreemptEligibleTime=2026-01-01T00:00:00 PreemptTime={time}";;
            requeue) echo $2 >> {tmp_path}/requeued;;
        esac""",
    }
    for name, text in answers.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}


@pytest.mark.parametrize(
    ("status", "preempted", "state", "restarted", "again"),
    [
        (0, False, "RUNNING", 0, False),
        (1, False, "RUNNING", 0, False),
        (2, False, "RUNNING", 0, False),
        (75, False, "RUNNING", 0, True),
        (75, False, "RUNNING", 3, False),
        (75, False, "CANCELLED", 0, False),
        (137, False, "RUNNING", 0, True),
        (137, False, "COMPLETING", 0, False),
        (140, False, "RUNNING", 0, True),
        (130, False, "RUNNING", 0, False),
        (130, True, "RUNNING", 0, True),
        (130, True, "RUNNING", 3, False),
        (5, False, "RUNNING", 0, False),
    ],
)
def test_a_job_of_slurm_is_requeued_only_where_the_agents_ask_for_it(
    tmp_path: Path, status: int, preempted: bool, state: str, restarted: int, again: bool
) -> None:
    (tmp_path / "statuses").write_text(f"{status}\n")
    script = Slurm(SlurmCluster(restarts=3, setup=("set -euo pipefail",))).render(_request(tmp_path))
    variables = _programs(tmp_path, preempted=preempted, state=state) | {"SLURM_RESTART_COUNT": str(restarted)}
    done = subprocess.run(["bash"], input=script, env=os.environ | variables, text=True, capture_output=True)
    assert done.returncode == status and not done.stderr
    assert (tmp_path / "requeued").exists() == again
    master = (tmp_path / "starts").read_text().split()[0]
    assert master == f"n1:{20_000 + (7 * 32 + restarted * 2) % 12_000}"


def test_a_job_of_slurm_has_the_options_of_its_cluster(tmp_path: Path) -> None:
    cluster = SlurmCluster(
        partition="gpu", account="lab", constraint="h100", time="24:00:00", gpus_per_node=8, cpus_per_node=96,
        directives=("--exclusive", "--qos=high"), setup=("module load cuda",), warn_s=200,
    )  # fmt: skip
    script = Slurm(cluster).render(_request(tmp_path))
    options = {line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")}
    assert options >= {
        f"job-name=m5ws-{_RUN}-1", "nodes=2", "ntasks-per-node=1", "partition=gpu", "account=lab", "constraint=h100",
        "time=24:00:00", "gpus-per-node=8", "cpus-per-task=96", "exclusive", "qos=high", "signal=USR2@200", "requeue",
    }  # fmt: skip
    assert script.index("module load cuda") < script.index("srun")


@pytest.mark.parametrize(
    ("statuses", "starts", "last"),
    [
        ((0,), 1, 0),
        ((1,), 1, 1),
        ((75, 0), 2, 0),
        ((137, 75, 130), 3, 130),
        ((140, 0), 2, 0),
        ((75, 75, 75, 75), 3, 75),
    ],
)
def test_a_host_starts_its_agent_again_where_the_agent_asks_for_it(
    tmp_path: Path, statuses: tuple[int, ...], starts: int, last: int
) -> None:
    (tmp_path / "statuses").write_text("".join(f"{status}\n" for status in statuses))
    script = Hosts(HostsCluster(hosts=("user@a", "b"), restarts=2)).render(_request(tmp_path))
    done = subprocess.run(["bash", "-s", "1"], input=script, cwd=tmp_path, text=True, check=False)
    places = (tmp_path / "starts").read_text().splitlines()
    assert len(places) == starts and done.returncode == last
    # All nodes have the address of the first host, and a port that follows from the name of the job.
    assert {place.partition(":")[0] for place in places} == {"a"} and {place[-1] for place in places} == {"1"}


def test_hosts_refuse_a_job_of_more_nodes(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"needs 2 hosts, and .* lists 1"):
        Hosts(HostsCluster(hosts=("a",))).render(_request(tmp_path))
