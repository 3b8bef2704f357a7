"""`m5ws keep`."""

import click

from m5ws.cli import names, output
from m5ws.errors import NotFound


@click.command("keep")
@click.argument("run", type=names.Id(("run",)))
@click.argument("checkpoint", required=False)
@output.json_option
@click.pass_context
def command(context: click.Context, run: str, checkpoint: str | None, as_json: bool) -> None:
    """Keep a checkpoint for ever, whatever retention rules say.

    CHECKPOINT is a name that `m5ws show RUN` lists, or a step; without it, the newest one is kept. Nothing undoes
    it.

    \b
    Example:
      m5ws keep 7c1d 20000
    """
    from m5ws.repository import checkpoints, refs

    repo = names.settled(names.workspace(context))
    _, run_id = refs.resolve(repo, run, ("run",))
    valid = checkpoints.valid(repo, run_id)
    found = [label for label in valid if checkpoint is None or _is(label, checkpoint)]
    if not found:
        raise NotFound(
            f"run {run_id} has no checkpoint{f' {checkpoint}' if checkpoint else ''}",
            hint=f"`m5ws show {run_id}` lists what it has.",
        )
    checkpoints.keep(repo, run_id, found[-1])
    if as_json:
        return output.print_json({"run": run_id, "checkpoint": found[-1]})
    return click.echo(f"checkpoint {found[-1]} of run {run_id} is kept for ever")


def _is(label: str, wanted: str) -> bool:
    from m5ws.repository import checkpoints

    return label == wanted or (wanted.isdigit() and checkpoints.step_of(label) == int(wanted))
