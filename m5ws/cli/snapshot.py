"""`m5ws snapshot`, and the snapshot that is taken before a launch."""

from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.repository.repository import Repository
    from m5ws.snapshot.snapshot import CapturedSnapshot
    from m5ws.workspace import Workspace


@click.command("snapshot")
@click.option(
    "-m",
    "--message",
    type=names.Text(),
    metavar="TEXT",
    help="Message stored with the snapshot. Does not affect its id.",
)
@click.option("--dry-run", is_flag=True, help="Print the snapshot's id, and publish nothing.")
@click.option("--rehash", is_flag=True, help="Read every file, also files that seem unchanged.")
@output.json_command
def command(context: click.Context, message: str | None, dry_run: bool, rehash: bool, as_json: bool) -> None:
    """Pin code, config, tokenizer, data and environment; print one digest.

    The same inputs give the same id, on any machine and in any directory. Code is every file of the working tree that
    git tracks or would track. Files that look like secrets are refused and listed. A file with unchanged size and time
    stamps is not read again; --rehash reads it.

    \b
    Example:
      m5ws snapshot -m "warm-up of 200 steps"
    """
    workspace = names.workspace(context)
    if rehash:
        # Without the index, every file is read.
        workspace.index_path.unlink(missing_ok=True)
    taken = take(workspace, workspace.repository(create=not dry_run, for_dry_run=dry_run), message, dry_run=dry_run)
    return output.print_json(taken) if as_json else output.echo(taken.id)


def take(
    workspace: "Workspace", repo: "Repository", message: str | None, *, dry_run: bool = False, observe: bool = True
) -> "CapturedSnapshot":
    """Take a snapshot of a workspace, and print a summary to stderr. Raises as `snapshot.take` does."""
    from m5ws.library import actions

    with progress.Bar() as bar:
        warn = lambda line: output.warn(f"warning: {line}")  # noqa: E731
        taken = actions.take_snapshot(workspace, repo, message, bar, warn, dry_run=dry_run, observe=observe)
    new = f"{output.size(taken.new_bytes)} new" if taken.new_bytes else "nothing new"
    output.print_note(f"{taken.files:,} files, {output.size(taken.size_bytes)}, {new}")
    for line in taken.annotation.notes:
        output.print_note(f"note: {line}")
    return taken
