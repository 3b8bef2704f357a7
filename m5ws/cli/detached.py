"""A detached run. Its supervisor is another m5ws process, in its own session.

The caller returns when the attempt has begun, so that other commands can use its id at once.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from m5ws import secret_scan
from m5ws.errors import M5Error
from m5ws.records import codec
from m5ws.records.launch import open_log
from m5ws.records.run import Run
from m5ws.workspace import Workspace

if TYPE_CHECKING:
    from m5ws.agent.attempt_plan import AttemptPlan
    from m5ws.repository.repository import Repository

_POLL_S = 0.05
_PLANNED = "planned"
LOG = "supervisor.log"
"""Name of the log of a supervisor, in the folder of its run."""


class NotStarted(M5Error):
    """The supervisor ended before the attempt began."""

    exit_code = 1


def program(workspace: Workspace) -> tuple[str, ...]:
    """Return the command of m5ws in another process of this installation, without a verb."""
    # -P: the current directory may contain a folder named m5ws.
    return (sys.executable, "-P", "-m", "m5ws", "-C", str(workspace.root))


def load_planned(path: Path) -> Run:
    """Return the run that `start` wrote for the supervisor."""
    return codec.decode(path.read_bytes(), Run, str(path))


def planned_arguments(folder: Path, run: Run) -> list[str]:
    """Write a new run into its folder, and return the command of m5ws that starts it."""
    (folder / _PLANNED).write_bytes(codec.encode(run))
    return ["run", "--planned", str(folder / _PLANNED)]


def start(workspace: Workspace, repo: "Repository", plan: "AttemptPlan", env: Sequence[str]) -> None:
    """Start the supervisor of a planned attempt, and wait until the attempt has begun.

    `env` has the values of the option `--env`. Raises NotStarted with the supervisor's output.
    """
    folder = plan.directory.parent
    folder.mkdir(parents=True, exist_ok=True)
    if plan.attempt == 1:
        arguments = planned_arguments(folder, plan.run)
    else:
        # The caller refuses a run that may be alive elsewhere, unless --take-over is given.
        arguments = ["resume", plan.run.id, "--take-over", *["--from-scratch"] * plan.from_scratch]
        arguments += ["--at", plan.outputs.name] if plan.outputs is not None else []
    arguments += ["--no-progress", *(f"--env={value}" for value in env)]
    arguments += [f"--why={plan.why.text}"] if plan.why is not None else []
    with open(folder / LOG, "ab", opener=open_log) as log:
        begin = log.tell()
        process = subprocess.Popen(
            (*program(workspace), *arguments), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    _wait(repo, plan, process, folder / LOG, begin)


def _wait(repo: "Repository", plan: "AttemptPlan", process: "subprocess.Popen[bytes]", log: Path, begin: int) -> None:
    from m5ws.repository.ledger import ledger

    while plan.attempt not in ledger.attempts(repo, plan.run.id):
        if process.poll() is not None:
            output = secret_scan.masked(log.read_bytes()[begin:].decode("utf-8", "replace").strip())
            raise NotStarted(f"run {plan.run.id} did not start:\n{output}", hint=f"The log is {log}.")
        time.sleep(_POLL_S)
