"""`m5ws rm`."""

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress
from m5ws.errors import UsageError


@click.command("rm")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=names.Id(("run", "sweep")))
@click.option("--dry-run", is_flag=True, help="Print the runs that would be removed; remove nothing.")
@click.option("--lost", is_flag=True, help="Remove runs whose newest attempt has no end, such as after a lost machine.")
@output.json_option
@click.pass_context
def command(context: click.Context, runs: tuple[str, ...], dry_run: bool, lost: bool, as_json: bool) -> None:
    """Remove runs. A sweep as RUN stands for all its runs.

    `m5ws ls` leaves removed runs out, and they cannot be resumed, forked or copied. `m5ws gc` deletes their checkpoints
    and output files, when these are old enough (--older-than). Their records, ledgers, verdicts and notes stay, and
    `m5ws show` shows them. A removal is final.

    A run is not removed while others rest on it: forks, replays, verdicts, or a checkpoint that is kept. The error
    names them. Either all RUNs are removed, or none.

    \b
    Examples:
      m5ws rm 7c1d --dry-run
      m5ws rm 7c1d 9a04
    """
    from m5ws.attempts import removal

    workspace = names.workspace(context)
    repo = workspace.open_repository()
    with progress.Bar() as bar:
        bar("reading the records of the runs", 0, 0)
        found = [run for given in runs for run in names.find_runs(repo, given)]
        if not found:
            raise UsageError("no run of this sweep has begun and is not removed")
        planned = removal.plan(repo, found, lost=lost)
        if not dry_run:
            removal.remove(repo, planned, workspace.author())
    if as_json:
        return output.print_json({"removed": planned, "dry_run": dry_run})
    rows = [(row.run, str(row.checkpoints), str(row.outputs), row.name or "") for row in planned]
    output.echo(output.table(("RUN", "CHECKPOINTS", "OUTPUT FILES", "NAME"), rows))
    output.print_note(
        "dry run: nothing was removed"
        if dry_run
        else "removed; `m5ws gc` deletes their checkpoints and output files that are older than its --older-than"
    )
    return None
