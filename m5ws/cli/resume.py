"""`m5ws resume`."""

from typing import TYPE_CHECKING, Unpack

import click
import msgspec

from m5ws.cli import environment, outputs, sweep_runs
from m5ws.cli.parameters import cluster_options, names, new_run, start_options
from m5ws.cli.terminal import attempt, output
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from m5ws.agent.attempt_plan import AttemptPlan
    from m5ws.agent.ports import Ports
    from m5ws.records.run import Run
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace


class _Arguments(cluster_options.ClusterArguments):
    """The values of the options."""

    at: str | None
    from_scratch: bool
    take_over: bool


@click.command("resume")
@click.argument("run", type=names.Id(("run", "sweep")))
@click.option("--at", metavar="TIME", help="Restore the output files of this earlier moment.")
@click.option("--from-scratch", is_flag=True, help="Restore nothing, and restart at the first step.")
@click.option("--take-over", is_flag=True, help="Stop an attempt that may be alive elsewhere.")
@start_options.parallel
@cluster_options.options
@environment.option
@start_options.dry_run
@start_options.no_progress
@output.json_command
def command(context: click.Context, run: str, parallel: int | None, **given: Unpack[_Arguments]) -> None:
    """Continue a run from its newest checkpoint, or a sweep.

    The new attempt has the run's snapshot, freshly materialised, and its launch. A script without m5ws.session gets the
    newest copy of its output files. Any workspace that has the store can resume a run.

    Of a sweep, the runs that have not begun are started, and the unfinished runs are resumed.

    A run is refused while an attempt may be alive elsewhere, or while its job waits or runs: `m5ws cancel` ends both.

    Nothing of the inputs can be changed: `m5ws fork RUN --set …` starts a new run from the checkpoint.

    Exit status: as of `m5ws run`, of a sweep as of `m5ws sweep`.

    \b
    Examples:
      m5ws resume 7c1d
      m5ws resume 7c1d --at "2026-03-01 12:30"
      m5ws resume 5eeb --parallel 2
      m5ws resume 7c1d --on big --nodes 2
    """
    from m5ws.repository.references import ids

    if given["at"] is not None and given["from_scratch"]:
        raise UsageError("--at cannot be combined with --from-scratch, which restores nothing")
    cluster_options.refuse_alone(given["on"], given["nodes"])
    if given["on"] is not None and (given["at"] is not None or given["from_scratch"]):
        raise UsageError("--on cannot be combined with --at or --from-scratch")
    workspace = names.workspace(context)
    repo = workspace.open_repository()
    kind, found_id = ids.resolve(repo, run, ("run", "sweep"))
    if kind == "sweep":
        return _resume_sweep(workspace, repo, found_id, parallel or 1, given)
    if parallel is not None:
        raise UsageError(f"--parallel requires a sweep, and {run} is a run")
    if given["on"] is not None:
        run_on = _resumable_on(workspace, repo, found_id, given)
        return cluster_options.submit(workspace, repo, run_on, given, given["nodes"] or _last_nodes(repo, found_id))
    return attempt.start(*_plan(workspace, repo, found_id, given), given)


def _last_nodes(repo: "Repository", run_id: str) -> int:
    """Return the number of nodes of a run's newest attempt, or of its newest job if none has begun."""
    from m5ws.repository.ledger import ledger
    from m5ws.repository.references import jobs

    if not (attempts := ledger.attempts(repo, run_id)):
        return next((job.nodes for job in reversed(jobs.of_attempts(repo, run_id))), 1)
    started = ledger.started(repo, run_id, max(attempts))
    return started.nodes if started is not None else 1


def _resumable_on(workspace: "Workspace", repo: "Repository", run_id: str, given: _Arguments) -> "Run":
    """Return a run for another job. Raises UsageError if an attempt has begun that left nothing to restore, and as
    `_resumable`.
    """
    from m5ws.attempts import planning

    run = _resumable(workspace, repo, run_id, given)
    if not given["take_over"] and not planning.is_resumable(repo, run):
        hint = "Start a new run with `m5ws run --on`."
        raise UsageError(f"run {run_id} has neither a checkpoint nor output files to restore", hint=hint)
    return run


def _resumable(workspace: "Workspace", repo: "Repository", run_id: str, given: _Arguments) -> "Run":
    """Return a run to resume, after delivering the records that it left here. Raises UsageError if it cannot be."""
    from m5ws.agent import places, recovery
    from m5ws.attempts import planning
    from m5ws.library import clusters
    from m5ws.repository.transfer import local_copies

    recovery.deliver_run(repo, run_id, workspace.home, workspace.work_root, workspace.kept, output.print_note)
    run = planning.resumed(repo, run_id)
    if not given["take_over"]:
        recovery.refuse_elsewhere(repo, run.id, workspace.home)
        clusters.refuse_alive(workspace, repo, run.id)
    folder = places.folder_of_copies(workspace.settings.checkpoint, workspace.environment)
    local_copies.publish_left(repo, run.id, folder)
    return run


def _plan(workspace: "Workspace", repo: "Repository", run_id: str, given: _Arguments) -> "tuple[Ports, AttemptPlan]":
    """Return the next attempt of a run and its ports. Raises UsageError if there is nothing to restore, and as
    `_resumable`.
    """
    from m5ws.attempts import kept_files

    run = _resumable(workspace, repo, run_id, given)
    if (written := workspace.settings.run.outputs) and not run.spec.outputs:
        kept_files.store(repo, run, workspace.home, written)
    ports, plan = new_run.plan(workspace, repo, run, given["env"], from_scratch=given["from_scratch"])
    if given["at"] is not None:
        plan = msgspec.structs.replace(plan, outputs=outputs.find_copy(repo, run.id, given["at"]))
    if plan.from_scratch and not given["from_scratch"]:
        raise _nothing_to_restore(workspace, run, plan.attempt - 1)
    return ports, plan


def _nothing_to_restore(workspace: "Workspace", run: "Run", attempt: int) -> UsageError:
    """Return the error of a resume without a checkpoint and without output files."""
    hint = "`--from-scratch` restarts at the first step."
    work = workspace.attempt_dir(run.id, attempt) / "work"
    if not workspace.settings.run.outputs and work.is_dir():
        hint = (
            f"The files of attempt {attempt} are in {work}. Set outputs in [run] of m5ws.toml to the files that a "
            f"resume needs, and repeat the command. {hint}"
        )
    return UsageError(f"run {run.id} has neither a checkpoint nor output files to restore", hint=hint)


def _resume_sweep(workspace: "Workspace", repo: "Repository", sweep_id: str, parallel: int, given: _Arguments) -> None:
    """Resume a sweep. Raises SweepIncomplete, and UsageError for options that only a run has."""
    from m5ws.library import clusters
    from m5ws.repository.references import notes

    if given["on"] is not None:
        raise UsageError(
            "a sweep cannot be combined with --on", hint="Resume each of its runs: `m5ws resume RUN --on`."
        )
    if given["at"] is not None or given["from_scratch"] or "rebuild" in given["env"]:
        raise UsageError("a sweep cannot be combined with --at, --from-scratch or --env rebuild")
    plan = sweep_runs.plan_resume(repo, sweep_id)
    for run in () if given["take_over"] else plan.runs:
        clusters.refuse_alive(workspace, repo, run.id)
    if given["dry_run"]:
        return output.print_json(plan) if given["as_json"] else output.echo(sweep_runs.describe(plan))
    options = sweep_runs.SweepOptions(
        env=given["env"],
        why=notes.why(notes.load(repo, plan.base.id)),
        progress=not given["no_progress"],
        take_over=given["take_over"],
    )
    return sweep_runs.execute(workspace, repo, plan, options, parallel=parallel, as_json=given["as_json"])
