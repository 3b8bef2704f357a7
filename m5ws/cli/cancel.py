"""`m5ws cancel`."""

from typing import TYPE_CHECKING

import click
import msgspec

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from m5ws.records.job import Job
    from m5ws.workspace import Workspace


@click.command("cancel")
@click.argument("run", type=names.Id(("run",)))
@output.json_command
def command(context: click.Context, run: str, as_json: bool) -> None:
    """End a run on any machine, after a last checkpoint.

    The request is in the store, and reaches the machine of the run within a minute. The run's jobs begin no attempt any
    more, and jobs that wait are removed from their queue. `m5ws resume` continues the run.

    \b
    Example:
      m5ws cancel 7c1d
    """
    from m5ws.records.job import Cancel
    from m5ws.repository import removals
    from m5ws.repository.ledger import ledger
    from m5ws.repository.references import jobs
    from m5ws.runs import state

    workspace, repo, run_id = names.open_run(context, run)
    removals.refuse(repo, run_id)
    submitted, attempt = jobs.of_run(repo, run_id), max(ledger.attempts(repo, run_id), default=0)
    standing = state.load_newest(repo, run_id).standing
    if standing == "finished" or not (submitted or standing == "running"):
        raise UsageError(f"run {run_id} is {standing}: nothing of it can be cancelled")
    requests, named = list[Cancel](), set[str]()
    while not requests or any(job.name not in named for job in submitted):
        named = {job.name for job in submitted}
        request = Cancel(run=run_id, attempt=attempt, jobs=tuple(job.name for job in submitted))
        own = {"created_s": repo.store.now(), **workspace.creator()}
        requests.append(jobs.cancel(repo, msgspec.structs.replace(request, **own)))
        # Another region may have taken over the run meanwhile.
        submitted = jobs.of_run(repo, run_id)
    removed = [job.name for job in submitted if _is_unqueued(workspace, job)]
    if as_json:
        return output.print_json({"run": run_id, "request": requests[-1], "unqueued": removed})
    for name in removed:
        output.print_note(f"job {name} was removed from its queue")
    if state.load_newest(repo, run_id).standing == "running":
        output.print_note(
            f"attempt {attempt} ends within a minute, after a last checkpoint; `m5ws wait {run_id}` waits"
        )
    elif len(removed) < len(submitted):
        output.print_note("the request is stored: its jobs begin no attempt any more")
    return None


def _is_unqueued(workspace: "Workspace", job: "Job") -> bool:
    """Remove a job from its queue if it waits there. Without an answer of its engine, its agents read the request."""
    from m5ws.engines import submission
    from m5ws.engines.interface import EngineUnavailable
    from m5ws.errors import UnknownSchema

    try:
        engine = submission.engine_of_job(workspace.settings, job)
        if engine.state(job.name).standing != "queued":
            return False
        engine.cancel(job.name)
    except (EngineUnavailable, UnknownSchema) as error:
        output.print_note(
            f"{job.cluster} does not answer: {error}. If the job {job.name} waits, it ends when it starts"
        )
        return False
    return True
