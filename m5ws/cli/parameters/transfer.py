"""Parameters and output of `m5ws push` and `m5ws pull`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters.grouped import Command, grouped
from m5ws.cli.terminal import output, progress
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from m5ws.repository.references.ids import Kind
    from m5ws.repository.repository import Repository
    from m5ws.repository.transfer.transfer import CopyCounts


def parameters(ids: click.ParamType[str], flag: str, *, store: str, everything: str) -> Callable[[Command], Command]:
    """Return the parameters of a command that copies.

    `ids` is the type of the arguments and `flag` the option for the other store. `store` and `everything` are the help
    texts of that option and of --all.
    """
    return grouped(
        click.argument("ids", metavar="[ID]...", type=ids, nargs=-1),
        click.option(flag, "url", required=True, metavar="STORE", help=store),
        click.option("--all", "everything", is_flag=True, help=everything),
        click.option("--dry-run", is_flag=True, help="Print the objects to copy; copy nothing."),
        output.json_command,
    )


def select_ids(source: "Repository", ids: tuple[str, ...], everything: bool) -> "list[tuple[Kind, str]]":
    """Return the snapshots and runs to copy, with --all no removed runs. Raises UsageError, Removed, NotFound."""
    from m5ws.repository import removals
    from m5ws.repository.references import ids as refs
    from m5ws.repository.references import runs, snapshots

    if bool(ids) == everything:
        raise UsageError("--all cannot be combined with ids" if ids else "nothing to copy: give ids, or --all")
    if not everything:
        wanted = [refs.resolve(source, given) for given in ids]
        for kind, name in wanted:
            if kind == "run":
                removals.refuse(source, name)
        return wanted
    removed = removals.removed_runs(source)
    present = [("run", name) for name in runs.ids(source) if name not in removed]
    return [("snapshot", name) for name in snapshots.ids(source)] + present


def copy(
    source: "Repository",
    target: "Repository",
    wanted: "list[tuple[Kind, str]]",
    *,
    everything: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Copy snapshots and runs, and print the result."""
    from m5ws.repository.transfer import transfer as operation

    with progress.Bar() as bar:
        copied = operation.copy(source, target, wanted, bar, dry_run=dry_run, leave_out=everything)
    for name in copied.left_out:
        output.warn(f"run {name} was left out: it, or a run that it needs, is removed in one of the stores alone")
    return output.print_json(copied) if as_json else output.echo(_text(copied, target.store.url, dry_run))


def _text(copied: "CopyCounts", url: str, dry_run: bool) -> str:
    new = f"{copied.new_objects:,} objects ({output.size(copied.new_bytes)}) and {copied.references:,} references"
    held = f"{copied.snapshots} snapshots and {copied.runs} runs with {copied.objects:,} objects"
    verb = "would be copied" if dry_run else "copied"
    return f"{held}, {output.size(copied.size_bytes)}: {new} {verb} to {url}"
