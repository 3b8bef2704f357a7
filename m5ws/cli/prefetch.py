"""`m5ws prefetch`."""

from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.repository.transfer.prefetch import Plan


@click.command("prefetch")
@click.argument("identifier", metavar="ID", type=names.Id())
@click.option("--dry-run", is_flag=True, help="Say what is missing, and fetch nothing but records.")
@output.json_option
@click.pass_context
def command(context: click.Context, identifier: str, dry_run: bool, as_json: bool) -> None:
    """Fetch what a snapshot or run needs into this machine's cache.

    ID is a snapshot, or a run, which stands for its snapshot and its newest checkpoint. Do it where time is cheap,
    before GPUs are booked: what starts then reads from the local disk. Every byte is checked. One that is interrupted
    goes on where it stopped when it is repeated.

    \b
    Example:
      m5ws prefetch 7c1d
    """
    from m5ws.repository import ids
    from m5ws.repository.transfer import prefetch

    repo = names.workspace(context).repository()
    planned = prefetch.plan(repo, *ids.resolve(repo, identifier))
    if planned.cached and not dry_run:
        with progress.Bar() as bar:
            prefetch.apply(repo, planned, bar)
    if as_json:
        return output.print_json(_document(planned, dry_run))
    output.echo(_said(planned, dry_run))
    return None


def _said(planned: "Plan", dry_run: bool) -> str:
    what = f"{planned.kind} {output.short(planned.id)}"
    needed = f"{planned.objects:,} objects, {output.size(planned.size_bytes)}"
    if not planned.cached:
        return (
            f"The store is a directory without a cache: {what} ({needed}) is read from there, nothing is to be fetched."
        )
    missing = f"{planned.missing:,} of them, {output.size(planned.missing_bytes)},"
    if not dry_run:
        return f"{what} needs {needed}: {missing} were fetched"
    assert planned.capacity_bytes is not None
    room = output.size(planned.capacity_bytes)
    fits = "" if planned.fits else f"; the cache keeps {room} for certain: raise [store] cache_limit"
    return f"{what} needs {needed}: {missing} are missing{fits}"


def _document(planned: "Plan", dry_run: bool) -> dict[str, object]:
    names = ("kind", "id", "cached", "objects", "size_bytes", "missing", "missing_bytes", "capacity_bytes", "fits")
    return {name: getattr(planned, name) for name in names} | {"fetched": planned.cached and not dry_run}
