"""`m5ws ls`."""

from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.runs.listing import RunRow, SnapshotRow


@click.command("ls")
@click.option("--snapshots", "only", flag_value="snapshots", help="List snapshots only.")
@click.option("--runs", "only", flag_value="runs", help="List runs only.")
@output.json_option
@click.pass_context
def command(context: click.Context, only: str | None, as_json: bool) -> None:
    """List snapshots and runs.

    The newest come first.

    \b
    Example:
      m5ws ls --runs
    """
    from m5ws.runs import listing

    repo = names.open_repository(names.workspace(context))
    with progress.Bar() as bar:
        snapshots = listing.list_snapshots(repo, bar) if only != "runs" else []
        runs = listing.list_runs(repo, bar) if only != "snapshots" else []
    if as_json:
        return output.print_json({"snapshots": snapshots, "runs": runs})
    if snapshots:
        output.echo(output.table(("SNAPSHOT", "WHEN", "COMMIT", "MESSAGE"), [_snapshot(row) for row in snapshots]))
    if snapshots and runs:
        output.echo()
    if runs:
        heads = ("RUN", "WHEN", "STATE", "STEP", "SNAPSHOT", "NAME")
        output.echo(output.table(heads, [_run(row) for row in runs]))
    if not snapshots and not runs:
        output.print_note("no snapshots and no runs: create them with `m5ws snapshot` and `m5ws run`")
    return None


def _snapshot(row: "SnapshotRow") -> tuple[str, ...]:
    commit = "-" if row.commit is None else row.commit[:10] + ("+" if row.dirty else "")
    message = row.problem or row.message or ""
    if row.derived_from and not row.message:
        message = f"from {output.short(row.derived_from)}"
    return output.short(row.id), output.moment(row.created_s), commit, message.split("\n")[0]


def _run(row: "RunRow") -> tuple[str, ...]:
    step = f"{row.last_step}/{row.total_steps}" if row.total_steps else str(row.last_step)
    start = f"from {row.parent.run}@{row.parent.step}" if row.parent else ""
    name = ", ".join(text for text in (row.name, start) if text)
    if row.reproduces:
        name = f"reproduces {row.reproduces}" + (f": {row.outcome}" if row.outcome else "")
    state = "damaged" if row.problem else row.standing
    snapshot = output.short(row.snapshot or "-")
    return row.id, output.moment(row.created_s), state, step, snapshot, row.problem or name
