"""`m5ws run`."""

from pathlib import Path
from typing import Unpack

import click

from m5ws.cli.parameters import cluster_options, names, new_run, start_options
from m5ws.cli.parameters.script import ScriptCommand
from m5ws.cli.terminal import attempt
from m5ws.records import codec
from m5ws.records.run import Run


@click.command("run", cls=ScriptCommand)
@click.argument("snapshot", type=names.Id(("snapshot",)), required=False)
@new_run.options
@new_run.message
@cluster_options.options
@start_options.options
@click.option("--planned", type=click.Path(path_type=Path), hidden=True)
@click.pass_context
def command(
    context: click.Context, message: str | None, planned: Path | None, **given: Unpack[new_run.NewRunArguments]
) -> None:
    """Train from a snapshot, in isolation.

    Without SNAPSHOT, a snapshot of the workspace is taken first. Every process gets the snapshot's files in a fresh
    directory, and sees nothing of your checkout. The run's id is printed on stdout at once.

    COMMAND is a script and its arguments (default: `[run] command` in m5ws.toml), a launcher with a script, such as
    `torchrun`, or any other program. It runs as typed. `--` may be left out before a word that is no id.

    --set changes an argument of COMMAND that has one value, or a key of a config file, in the run's snapshot.

    --on NAME submits a job to a cluster of m5ws.toml, and returns. This machine needs neither torch nor a GPU. With
    --nodes, --nproc is the number of processes on each node.

    Ctrl-C stops a run, and so does a signal of a scheduler. Published checkpoints and results stay valid. `m5ws resume`
    continues the run.

    Exit status: 0 the run finished, 1 it failed, 4 another attempt took over, 5 all steps are done but the store lacks
    results, 130 interrupted.

    \b
    Examples:
      m5ws run train.py --epochs 3
      m5ws run -- torchrun --nproc-per-node 2 train.py --lr 1e-3
      m5ws run 1f3a9c --set optimizer.lr=1e-4 --nproc 2
      m5ws run --on big --nodes 2 --nproc 8
    """
    cluster_options.refuse_alone(given["on"], given["nodes"])
    workspace = names.workspace(context)
    repo = workspace.open_repository(create=True)
    if planned is not None:
        run = codec.decode(planned.read_bytes(), Run, str(planned))
    else:
        new_run.refuse_invalid(given["why"])
        run = new_run.from_snapshot(context, workspace, repo, given, message)
    if given["on"] is not None:
        return cluster_options.submit(workspace, repo, run, given, given["nodes"] or 1, given["why"])
    return attempt.start(*new_run.plan(workspace, repo, run, given["env"], given["why"]), given)
