"""`m5ws checkpoint keep`."""

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output


@click.command("keep")
@click.argument("checkpoint", metavar="CHECKPOINT", type=names.Id(("run",)))
@output.json_command
def command(context: click.Context, checkpoint: str, as_json: bool) -> None:
    """Keep a checkpoint for ever, despite retention rules.

    CHECKPOINT is RUN@STEP, or RUN for its newest. This cannot be undone.

    \b
    Example:
      m5ws checkpoint keep 7c1d@20000
    """
    from m5ws.checkpoints import resolve
    from m5ws.repository.references import checkpoints

    repo = names.workspace(context).open_repository()
    reference = resolve.resolve(repo, checkpoint)
    checkpoints.keep(repo, reference.run, reference.name)
    if as_json:
        return output.print_json({"run": reference.run, "checkpoint": reference.name})
    return output.echo(f"checkpoint {reference.name} of run {reference.run} is kept for ever")
