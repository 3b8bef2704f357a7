"""`m5ws push`, and what it shares with `m5ws pull`."""

from typing import TYPE_CHECKING

import click
import msgspec

from m5ws.cli import names, output, progress
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from m5ws.operations.transfer import Copied
    from m5ws.records import Format
    from m5ws.repository import Repository
    from m5ws.repository.refs import Kind


@click.command("push")
@click.argument("ids", metavar="[ID]...", type=names.Id(), nargs=-1)
@click.option("--to", "url", required=True, metavar="STORE", help="A directory, or s3://bucket/prefix; made if new.")
@click.option("--all", "everything", is_flag=True, help="Every snapshot and run of this workspace's store.")
@click.option("--dry-run", is_flag=True, help="Copy nothing; say what would be.")
@output.json_option
@click.pass_context
def command(
    context: click.Context, ids: tuple[str, ...], url: str, everything: bool, dry_run: bool, as_json: bool
) -> None:
    """Copy snapshots and runs into another store.

    With each goes all that it needs; what the other store has is not sent again, and a copy that was cut short goes
    on where it stopped. Every byte is checked on the way.

    \b
    Examples:
      m5ws push 7c1d --to s3://team-training/m5ws
      m5ws push --all --to /mnt/backup/m5ws
    """
    here = names.workspace(context)
    source = names.settled(here)
    wanted = chosen(source, ids, everything)
    target = here.repository_at(url, create=not dry_run, imagined=dry_run, form=_alike(source))
    return transfer(source, target, wanted, dry_run, as_json)


def _alike(source: "Repository") -> "Format":
    """Return the format of a store that snapshots and runs of `source` can go to, wherever it is."""
    return msgspec.structs.replace(source.format, home_region=None)


def chosen(source: "Repository", ids: tuple[str, ...], everything: bool) -> "list[tuple[Kind, str]]":
    """Return what is to be copied. Raises UsageError, NotFound, AmbiguousId."""
    from m5ws.repository import refs, runs, snapshots

    if bool(ids) == everything:
        raise UsageError("--all and ids exclude each other" if ids else "nothing is named: give ids, or --all")
    if not everything:
        return [refs.resolve(source, given) for given in ids]
    return [("snapshot", name) for name in snapshots.ids(source)] + [("run", name) for name in runs.ids(source)]


def transfer(
    source: "Repository", target: "Repository", wanted: "list[tuple[Kind, str]]", dry_run: bool, as_json: bool
) -> None:
    """Copy, and print what was copied."""
    from m5ws.operations import transfer as operation

    with progress.Bar() as bar:
        copied = operation.copy(source, target, wanted, bar, dry_run=dry_run)
    return output.print_json(copied) if as_json else click.echo(_says(copied, target.store.url, dry_run))


def _says(copied: "Copied", url: str, dry_run: bool) -> str:
    new = f"{copied.new_objects:,} objects ({output.size(copied.new_bytes)}) and {copied.references:,} references"
    held = f"{copied.snapshots} snapshots and {copied.runs} runs with {copied.objects:,} objects"
    verb = "would be copied" if dry_run else "copied"
    return f"{held}, {output.size(copied.size_bytes)}: {new} {verb} to {url}"
