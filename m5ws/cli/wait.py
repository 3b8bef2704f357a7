"""`m5ws wait`."""

import time
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output
from m5ws.records.failure import EndReason

if TYPE_CHECKING:
    from m5ws.repository.repository import Repository
    from m5ws.runs.state import RunState
    from m5ws.workspace import Workspace

_POLL_S = 5.0
_ALIVE = ("created", "running")
_STATUSES = {"finished": 0, "interrupted": 130, "unsaved": 5}
_FAILED, _REMOVED = 1, 6


@click.command("wait")
@click.argument("run", type=names.Id(("run",)))
@output.json_option
@click.pass_context
def command(context: click.Context, run: str, as_json: bool) -> None:
    """Wait for the end of a run.

    The run may be on any machine. A run that was interrupted or lost a node has not ended while its job waits or runs,
    if the job's engine answers here.

    Exit status: 0 the run finished, 1 it failed, 5 the store lacks results, 6 it was removed, 130 it was interrupted.

    \b
    Example:
      m5ws wait 7c1d && m5ws reproduce 7c1d
    """
    from m5ws.repository import removals
    from m5ws.runs import state

    workspace = names.workspace(context)
    repo = workspace.open_repository()
    run_id = names.find_id(repo, run, "run")
    while not (is_removed := removals.load(repo, run_id) is not None):
        found = state.load_newest(repo, run_id)
        if found.standing not in _ALIVE and not (_is_continued(found) and _job_is_alive(workspace, repo, run_id)):
            break
        if found.standing == "created" and not _job_is_alive(workspace, repo, run_id):
            break
        time.sleep(_POLL_S)
    found = state.load_newest(repo, run_id)
    status = _REMOVED if is_removed else _STATUSES.get(found.standing, _FAILED)
    if as_json:
        output.print_json({"run": run_id, "standing": "removed" if is_removed else found.standing, "status": status})
    else:
        output.echo(f"run {run_id} {'was removed' if is_removed else found.standing}, step {found.last_step}")
    context.exit(status)


def _is_continued(found: "RunState") -> bool:
    """Return True if a job may begin another attempt after the newest."""
    reason = found.newest.reason if found.newest is not None else None
    kind = (reason or EndReason(kind="status")).kind
    return (found.standing == "interrupted" and kind != "cancelled") or kind in ("node lost", "supervisor killed")


def _job_is_alive(workspace: "Workspace", repo: "Repository", run_id: str) -> bool:
    """Return True if the newest job of a run waits or runs. An engine that does not answer here proves nothing."""
    from m5ws.engines import submission
    from m5ws.engines.interface import EngineUnavailable
    from m5ws.repository.references import jobs

    submitted = jobs.of_run(repo, run_id)
    if not submitted:
        return False
    try:
        found = submission.engine_of_job(workspace.settings, submitted[-1]).state(submitted[-1].name)
    except EngineUnavailable:
        return True
    return found.standing in ("queued", "running")
