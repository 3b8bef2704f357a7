"""Slurm, by the text forms of its commands, here or on a login node. Tried with 22.05 and 24.11.

sbatch(1) describes the options. A job that Slurm starts again keeps its id, and SLURM_RESTART_COUNT counts the starts.

The script itself asks Slurm for the next start: if the agents ask for it (`m5ws agent`), if an agent was killed, and
after a preemption that left time for a last checkpoint. It does not ask after a failed run, or for a cancelled job,
whose state is not RUNNING any more.
"""

import re
import shlex

import msgspec

from m5ws.config.settings import SlurmCluster
from m5ws.engines import commands
from m5ws.engines.interface import EngineUnavailable, JobRequest, JobState, NodeOutput, Standing

_HINT = "`m5ws doctor` shows the engines that answer. `login` in [clusters] names a host with Slurm's commands."
_QUEUED = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING")
_PORTS = 20_000
"""The first port of an attempt is in the 12,000 from this number on. A restarted job has other ports."""
_WAIT_S = 300
"""After the end of one agent, every other agent ends by itself. srun ends an agent that is left after this time."""
_RUN_S = 3600.0
"""The longest wait for a command on all nodes, with its time in the queue."""
_LABELLED = re.compile(r"^ *(\d+): ?(.*)$")
"""A line of a task, as `srun --label` prints it."""
_SCRIPT = """\
export M5WS_MASTER="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):\
$(({ports} + (SLURM_JOB_ID * 32 + ${{SLURM_RESTART_COUNT:-0}} * 2) % 12000))"
cpus=${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}}
{setup}set +euo pipefail; unset IFS
srun --kill-on-bad-exit=0 --wait={wait} --cpu-bind=none $cpus {agent}
status=$?
job() {{ scontrol show job --oneliner "$SLURM_JOB_ID"; }}
again=no
if [ $status = 130 ] || [ $status = 143 ]; then
    job | grep -q "PreemptTime=[0-9]" && again=yes
elif [ $status = 75 ] || [ $status -gt 130 ]; then
    again=yes
fi
if [ $again = yes ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {restarts} ] && job | grep -q "JobState=RUNNING"; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
"""


class Slurm(msgspec.Struct, frozen=True):
    """`Engine` with the settings of a cluster."""

    settings: SlurmCluster

    def render(self, request: JobRequest) -> str:
        own = self.settings
        options = {
            "job-name": request.name,
            "comment": f"m5ws:{request.run}",
            **self._nodes(request.nodes),
            "time": own.time,
            "signal": f"USR2@{own.warn_s}",
            "open-mode": "append",
            "output": own.output,
        }
        lines = [f"--{name}={value}" for name, value in options.items() if value is not None]
        header = ["#!/bin/bash", *(f"#SBATCH {line}" for line in (*lines, "--requeue", *own.directives))]
        body = _SCRIPT.format(
            ports=_PORTS,
            setup="".join(f"{line}\n" for line in own.setup),
            agent=shlex.join(request.agent),
            restarts=own.restarts,
            wait=_WAIT_S,
        )
        return "\n".join([*header, body])

    def _nodes(self, nodes: int) -> dict[str, str | None]:
        """Return the options that choose nodes."""
        own = self.settings
        return {
            "nodes": str(nodes),
            "ntasks-per-node": "1",
            "partition": own.partition,
            "account": own.account,
            "constraint": own.constraint,
            "gpus-per-node": str(own.gpus_per_node) if own.gpus_per_node else None,
            "cpus-per-task": str(own.cpus_per_node) if own.cpus_per_node else None,
        }

    def run(self, words: tuple[str, ...], nodes: int) -> list[NodeOutput]:
        options = [f"--{name}={value}" for name, value in self._nodes(nodes).items() if value is not None]
        lines = "\n".join((*self.settings.setup, commands.accept_one(words)))
        srun = ("srun", "--label", "--job-name=m5ws-preflight", "--kill-on-bad-exit=0", "--cpu-bind=none", *options)
        printed = self._run(*srun, "bash", "-c", lines, timeout_s=_RUN_S)
        tasks: dict[int, list[str]] = {task: [] for task in range(nodes)}
        for match in filter(None, map(_LABELLED.match, printed.splitlines())):
            tasks.setdefault(int(match[1]), []).append(match[2])
        return [NodeOutput(node=f"task {task}", text="\n".join(lines)) for task, lines in tasks.items()]

    def check(self, request: JobRequest, script: str) -> None:
        self._run("sbatch", "--test-only", text=script)

    def submit(self, request: JobRequest, script: str, after: str | None = None) -> str:
        waits = () if after is None else (f"--dependency=afterany:{after}",)
        return self._run("sbatch", "--parsable", *waits, text=script).strip().partition(";")[0]

    def state(self, name: str) -> JobState:
        listed = self._run("squeue", "--noheader", f"--name={name}", "--states=all", "--format=%T|%r")
        if not listed.strip():
            # squeue forgets a job some minutes after its end. Not every site keeps accounts.
            try:
                since = "--starttime=now-365days"
                form = ("--noheader", "--parsable2", "--allocations", "--format=State,Reason")
                listed = self._run("sacct", f"--name={name}", since, *form)
            except EngineUnavailable:
                return JobState(standing="unknown")
        if not listed.strip():
            return JobState(standing="unknown")
        text, reason = listed.strip().splitlines()[-1].split("|", 1)
        word = text.split()[0]
        standing: Standing = "queued" if word in _QUEUED else "running" if word in _RUNNING else "ended"
        return JobState(standing=standing, text=text, reason="" if reason == "None" else reason)

    def cancel(self, name: str) -> None:
        self._run("scancel", f"--name={name}")

    def _run(self, *words: str, text: str = "", timeout_s: float = commands.TIMEOUT_S) -> str:
        login = self.settings.login
        return commands.output(commands.over_ssh(login, words) if login else words, text, _HINT, timeout_s)
