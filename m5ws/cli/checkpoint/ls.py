"""`m5ws checkpoint ls`."""

from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.checkpoints.listing import CheckpointInfo


@click.command("ls")
@click.argument("run", type=names.Id(("run",)))
@output.json_command
def command(context: click.Context, run: str, as_json: bool) -> None:
    """List the checkpoints of a run.

    NEW is the number of bytes that a checkpoint added to the store. A checkpoint marked "not counted" was published by
    an attempt after a newer attempt had replaced it. No attempt resumes from it.

    \b
    Example:
      m5ws checkpoint ls 7c1d
    """
    from m5ws.checkpoints import listing

    _, repo, run_id = names.open_run(context, run)
    with progress.Bar() as bar:
        rows = listing.list_checkpoints(repo, run_id, bar)
    if as_json:
        return output.print_json({"run": run_id, "checkpoints": rows})
    if rows:
        heads = ("STEP", "ATTEMPT", "WHEN", "FORMAT", "RANKS", "SIZE", "NEW", "NOTE")
        output.echo(output.table(heads, [_row(row) for row in rows]))
    else:
        output.print_note(f"run {run_id} has no checkpoint")
    return None


def _row(row: "CheckpointInfo") -> tuple[str, ...]:
    if row.problem:
        return str(row.step), str(row.attempt), output.moment(row.when_s), "-", "-", "-", "-", row.problem
    marks = [word for word, applies in (("kept", row.kept), ("not counted", not row.counts)) if applies]
    sizes = output.size(row.size_bytes), output.size(row.new_bytes)
    when = output.moment(row.when_s)
    return str(row.step), str(row.attempt), when, row.format, str(row.world), *sizes, ", ".join(marks)
