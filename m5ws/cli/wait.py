"""`m5ws wait`."""

import time

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output

_POLL_S = 5.0
_STATUSES = {"finished": 0, "interrupted": 130, "unsaved": 5}
_FAILED, _REMOVED = 1, 6


@click.command("wait")
@click.argument("run", type=names.Id(("run",)))
@output.json_command
def command(context: click.Context, run: str, as_json: bool) -> None:
    """Wait for the end of a run.

    The run may be on any machine. A run on a cluster has not ended while its job waits or runs. If the engine does not
    answer here, the command waits while the job may begin an attempt: its first, or one after a lost node or a SIGTERM.

    While this command runs, a job of AWS Batch moves to the next queue of its cluster if the job gets no nodes, or if
    the store has no event of the run for `patience_s` seconds. A move or a submission that was killed is completed.

    Exit status: 0 the run finished, 1 it failed, 5 the store lacks results, 6 it was removed, 130 it was interrupted.

    \b
    Example:
      m5ws wait 7c1d && m5ws reproduce 7c1d
    """
    from m5ws.engines.interface import EngineUnavailable
    from m5ws.library import regions
    from m5ws.repository import removals
    from m5ws.repository.references import jobs
    from m5ws.runs import liveness, state

    workspace, repo, run_id = names.open_run(context, run)
    printed = {""}
    while not (is_removed := removals.load(repo, run_id) is not None):
        try:
            note = regions.move_on(workspace, repo, run_id) or ""
        except EngineUnavailable as error:
            note = f"no queue takes the job yet: {error} ({error.hint})"
        has_ended, unknown = liveness.look(workspace.settings, repo, state.load_newest(repo, run_id))
        for each in (note, unknown):
            if each not in printed:
                output.print_note(each)
                printed.add(each)
        if has_ended:
            break
        time.sleep(_POLL_S)
    found = state.load_newest(repo, run_id)
    status = _REMOVED if is_removed else _STATUSES.get(found.standing, _FAILED)
    newest = next(reversed(jobs.of_attempts(repo, run_id)), None) if found.newest is None and not is_removed else None
    if newest is not None and (cancel := jobs.cancel_of_job(repo, newest)) is not None:
        status = _FAILED if cancel.problem else _STATUSES["interrupted"]
        output.print_note(f"its job was cancelled from {cancel.host}{f': {cancel.problem}' if cancel.problem else ''}")
    elif newest is not None:
        output.print_note(f"job {newest.name} has ended before an attempt began: its output has the reason")
    if as_json:
        output.print_json({"run": run_id, "standing": "removed" if is_removed else found.standing, "status": status})
    else:
        output.echo(f"run {run_id} {'was removed' if is_removed else found.standing}, step {found.last_step}")
    context.exit(status)
