"""The state of jobs that Slurm's controller has forgotten: a real `sacct`, on a real slurmdbd and MariaDB."""

from pathlib import Path

import pytest

from m5ws.config.settings import SlurmCluster
from m5ws.engines.interface import JobRequest
from m5ws.engines.slurm import Slurm
from tests.support.machine import slurm
from tests.support.waiting import wait_for

pytestmark = pytest.mark.soak


def test_accounts_know_the_end_of_a_job_that_the_controller_has_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = {"true": "COMPLETED", "false": "FAILED", "sleep 600": "CANCELLED"}
    with slurm.running(tmp_path, nodes=1, with_accounts=True) as cluster:
        monkeypatch.chdir(tmp_path)  # A job writes its output here.
        monkeypatch.setenv("SLURM_CONF", str(cluster.configuration))
        engine = Slurm(SlurmCluster())
        names = {f"m5ws-7c1d-{number}": program for number, program in enumerate(ends)}
        for name, program in names.items():
            request = JobRequest(name=name, run="7c1d", nodes=1, agent=tuple(program.split()))
            engine.submit(request, engine.render(request))
            wait_for(lambda name=name: engine.state(name).standing in ("running", "ended"))  # type: ignore[misc]
            if ends[program] == "CANCELLED":
                engine.cancel(name)
            # A controller forgets jobs once a minute.
            wait_for(lambda name=name: not cluster.call("squeue", "-h", f"--name={name}", "--states=all"))  # type: ignore[misc]
            state = engine.state(name)
            assert (state.standing, state.text.split()[0]) == ("ended", ends[program])
        assert engine.state("m5ws-7c1d-9").standing == "unknown"
