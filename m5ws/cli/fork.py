"""`m5ws fork`."""

from typing import Unpack

import click

from m5ws.cli.parameters import cluster_options, names, new_run, start_options
from m5ws.cli.parameters.script import ScriptCommand
from m5ws.cli.terminal import attempt


class _Arguments(new_run.ForkArguments):
    """The values of the options of a fork."""

    without: tuple[str, ...]


@click.command("fork", cls=ScriptCommand)
@click.argument("checkpoint", type=names.Id(("run",)), metavar="RUN[@STEP]")
@new_run.snapshot
@new_run.options
@new_run.restart
@new_run.without
@cluster_options.options
@start_options.options
@click.pass_context
def command(context: click.Context, checkpoint: str, **given: Unpack[_Arguments]) -> None:
    """Start a new run from a checkpoint of another run, with changes.

    RUN is its newest checkpoint, RUN@STEP the checkpoint after that step. The new run has its own ledger, checkpoints
    and verdict. It keeps the snapshot and the launch of RUN, except for the given options and COMMAND. The changes are
    printed before anything starts.

    With `--without`, a loader of `m5ws.data` leaves samples out. The order of the other samples stays the same.

    Of a removed run, only a checkpoint that is kept on this machine can be forked (`m5ws show RUN`).

    Exit status: as of `m5ws run`.

    \b
    Examples:
      m5ws fork 7c1d@20000 --set lr=1e-4
      m5ws fork 7c1d --nproc 4 --restart data
      m5ws fork 7c1d@20000 --without data/web/part-7.jsonl
      m5ws fork 7c1d@20000 -- train.py --lr 1e-4 --warmup 0
    """
    cluster_options.refuse_alone(given["on"], given["nodes"])
    workspace = names.workspace(context)
    repo = workspace.open_repository()
    new_run.refuse_invalid(given["why"])
    run = new_run.from_checkpoint(context, repo, checkpoint, given)
    if given["on"] is not None:
        return cluster_options.submit(workspace, repo, run, given, given["nodes"] or 1, given["why"])
    return attempt.start(*new_run.plan(workspace, repo, run, given["env"], given["why"]), given)
