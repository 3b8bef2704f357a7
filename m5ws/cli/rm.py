"""`m5ws rm`."""

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress
from m5ws.errors import UNREADABLE, UsageError

if TYPE_CHECKING:
    from m5ws.agent.recovery import NewestAttempt
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace


@click.command("rm")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=names.Id(("run", "sweep")))
@click.option("--dry-run", is_flag=True, help="Print the runs that would be removed; remove nothing.")
@click.option("--lost", is_flag=True, help="Remove runs whose newest attempt has no end, such as after a lost machine.")
@click.option("--drop", is_flag=True, help="Delete the work of removed runs that is kept on this machine.")
@output.json_command
def command(
    context: click.Context, runs: tuple[str, ...], dry_run: bool, lost: bool, drop: bool, as_json: bool
) -> None:
    """Remove runs. A sweep as RUN stands for all its runs.

    `m5ws ls` leaves removed runs out, and they cannot be resumed, forked or copied. `m5ws gc` deletes their checkpoints
    and output files, when these are old enough (--older-than). Their records, ledgers, verdicts and notes stay, and
    `m5ws show` shows them. A removal is final.

    A run is not removed while others rest on it: forks, replays, verdicts, or a checkpoint that is kept. The error
    names them. A run whose job waits or runs on a cluster is not removed either. Either all RUNs are removed, or none.

    An attempt of a removed run that is alive stops by itself, with exit status 6. Its last checkpoint and its output
    files stay on its machine: `m5ws show` lists them there, `m5ws fork` starts a new run from the checkpoint, and
    `m5ws rm --drop` deletes them.

    \b
    Examples:
      m5ws rm 7c1d --dry-run
      m5ws rm 7c1d 9a04
      m5ws rm 7c1d --drop
    """
    from m5ws.attempts import removal
    from m5ws.library import clusters

    workspace = names.workspace(context)
    repo = workspace.open_repository()
    if drop:
        return _drop(workspace, repo, runs, dry_run=dry_run, as_json=as_json)
    with progress.Bar() as bar:
        bar("reading the records of the runs", 0, 0)
        found = [run for given in runs for run in names.find_runs(repo, given)]
        if not found:
            raise UsageError("no run of this sweep has begun and is not removed")
        for run in () if lost else found:
            with suppress(*UNREADABLE):
                clusters.refuse_alive(workspace, repo, run)
        removed, meanwhile = removal.plan(repo, found, lost=lost), list[str]()
        if not dry_run:
            removed, meanwhile = removal.remove(repo, removed, workspace.author())
    if as_json:
        return output.print_json({"removed": removed, "meanwhile": meanwhile, "dry_run": dry_run})
    rows = [
        (row.run, str(row.checkpoints), str(row.outputs), _describe_start(row.user, row.newest), row.name or "")
        for row in removed
    ]
    output.echo(output.table(("RUN", "CHECKPOINTS", "OUTPUT FILES", "STARTED", "NAME"), rows))
    for line in meanwhile:
        output.warn(line)
    output.print_note(
        "dry run: nothing was removed"
        if dry_run
        else "removed; `m5ws gc` deletes their checkpoints and output files that are older than its --older-than"
    )
    return None


def _describe_start(user: str | None, newest: "NewestAttempt | None") -> str:
    """Return the user who started a run, the place where it was started last, and its last sign of life."""
    if newest is None:
        return "not started"
    creator = f"by {user} " if user else ""
    return f"{creator}on {newest.host}, last sign of life {output.duration(time.time() - newest.last_s)} ago"


def _drop(workspace: "Workspace", repo: "Repository", runs: Iterable[str], *, dry_run: bool, as_json: bool) -> None:
    """Delete the kept work of removed runs. Raises UsageError if there is none."""
    from m5ws.outputs import kept_work

    ids = [names.find_id(repo, given, "run") for given in runs]
    dropped = [work for run in ids for work in kept_work.find(workspace.home, workspace.kept, run)]
    if not dropped:
        raise UsageError("this workspace keeps no work of these runs", hint="Only work of removed runs is dropped.")
    for work in () if dry_run else dropped:
        kept_work.drop(work)
    if as_json:
        return output.print_json({"dropped": dropped, "dry_run": dry_run})
    output.echo(*map(kept_work.describe, dropped))
    return output.print_note("dry run: nothing was deleted" if dry_run else "deleted")
