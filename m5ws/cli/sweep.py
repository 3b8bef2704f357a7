"""`m5ws sweep`."""

from typing import Unpack

import click

from m5ws.cli import environment, sweep_runs
from m5ws.cli.parameters import cluster_options, names, new_run, start_options
from m5ws.cli.parameters.script import ScriptCommand
from m5ws.cli.terminal import output
from m5ws.errors import UsageError


@click.command("sweep", cls=ScriptCommand)
@click.argument("axes", nargs=-1, required=True, type=names.Text(), metavar="KEY=VALUES...")
@new_run.snapshot
@click.option(
    "--from", "checkpoint", type=names.Id(("run",)), metavar="RUN[@STEP]", help="Start all from a checkpoint."
)
@new_run.restart
@new_run.options
@new_run.message
@start_options.parallel
@cluster_options.options
@start_options.options
@click.pass_context
def command(
    context: click.Context,
    axes: tuple[str, ...],
    checkpoint: str | None,
    message: str | None,
    parallel: int | None,
    **given: Unpack[new_run.ForkArguments],
) -> None:
    """Start a run for each combination of values.

    KEY is an argument of COMMAND, a key of the config, or seed, as of --set. VALUES are separated by commas, or a
    range: 0:4 is 0, 1, 2 and 3. All runs have one snapshot, or snapshots that differ in the config keys alone. Other
    options are as of `m5ws run`, or with --from as of `m5ws fork`.

    `m5ws resume SWEEP` starts the runs that have not begun, and resumes the unfinished runs.

    Exit status: 0 if all runs finished, else the status of the unfinished runs, or 1 if their statuses differ.

    \b
    Examples:
      m5ws sweep lr=1e-4,3e-4 seed=0:4 --parallel 2
      m5ws sweep lr=1e-4,3e-4 --set warmup=100 -- train.py --lr 1e-3
      m5ws sweep lr=1e-4,3e-4 --from 7c1d@20000
      m5ws sweep lr=1e-4,3e-4 --on big --nproc 8
    """
    from m5ws.attempts import sweep_grid

    cluster_options.refuse_alone(given["on"], given["nodes"])
    if checkpoint is None and given["restart"]:
        raise UsageError("--restart requires --from")
    if checkpoint is not None and message is not None:
        raise UsageError("--message cannot be combined with --from, which takes no snapshot")
    workspace = names.workspace(context)
    repo = workspace.open_repository(create=True)
    new_run.refuse_invalid(given["why"])
    grid = sweep_grid.parse(axes)
    if checkpoint is None:
        base = new_run.from_snapshot(context, workspace, repo, given, message)
    else:
        base = new_run.from_checkpoint(context, repo, checkpoint, given)
    plan = sweep_runs.plan_new(repo, base, grid)
    environment.policy(given["env"])
    if given["on"] is None:
        new_run.plan(workspace, repo, base, given["env"])
    if given["dry_run"]:
        return output.print_json(plan) if given["as_json"] else output.echo(sweep_runs.describe(plan))
    if given["on"] is not None:
        return sweep_runs.submit(workspace, repo, plan, given, given["why"])
    options = sweep_runs.SweepOptions(env=given["env"], why=given["why"], progress=not given["no_progress"])
    return sweep_runs.execute(workspace, repo, plan, options, parallel=parallel or 1, as_json=given["as_json"])
