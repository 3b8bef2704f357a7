"""`m5ws prefetch`."""

from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.repository.transfer.prefetch import PrefetchPlan


@click.command("prefetch")
@click.argument("identifier", metavar="ID", type=names.Id())
@click.option("--dry-run", is_flag=True, help="Print the missing objects; fetch only records.")
@output.json_command
def command(context: click.Context, identifier: str, dry_run: bool, as_json: bool) -> None:
    """Download a snapshot or run into this machine's cache.

    ID is a snapshot or a run. For a run, its snapshot and its newest checkpoint are downloaded. A job that starts
    later reads from the local disk, so prefetch before you book GPUs. Every byte is verified. To continue an
    interrupted prefetch, repeat the command.

    \b
    Example:
      m5ws prefetch 7c1d
    """
    from m5ws.repository.references import ids
    from m5ws.repository.transfer import prefetch

    repo = names.workspace(context).repository()
    planned = prefetch.plan(repo, *ids.resolve(repo, identifier))
    if planned.cached and not dry_run:
        with progress.Bar() as bar:
            prefetch.apply(repo, planned, bar)
    if as_json:
        return output.print_json(_document(planned, dry_run))
    output.echo(_text(planned, dry_run))
    return None


def _text(planned: "PrefetchPlan", dry_run: bool) -> str:
    name = f"{planned.kind} {output.short(planned.id)}"
    needed = f"{planned.objects:,} objects, {output.size(planned.size_bytes)}"
    if not planned.cached:
        return f"The store is a directory without a cache: {name} ({needed}) is read from there; nothing to fetch."
    missing = f"{planned.missing:,} of them, {output.size(planned.missing_bytes)},"
    if not dry_run:
        return f"{name} needs {needed}: {missing} were fetched"
    assert planned.capacity_bytes is not None
    room = output.size(planned.capacity_bytes)
    fits = "" if planned.fits else f"; the cache has room for {room}: raise [store] cache_limit"
    return f"{name} needs {needed}: {missing} are missing{fits}"


def _document(planned: "PrefetchPlan", dry_run: bool) -> dict[str, object]:
    names = ("kind", "id", "cached", "objects", "size_bytes", "missing", "missing_bytes", "capacity_bytes", "fits")
    return {name: getattr(planned, name) for name in names} | {"fetched": planned.cached and not dry_run}
