"""`m5ws prefetch`."""

from typing import TYPE_CHECKING

import click
import msgspec

from m5ws.cli.parameters import cluster_options, names
from m5ws.cli.terminal import data as data_lines
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.repository.transfer.prefetch import PrefetchPlan


@click.command("prefetch")
@click.argument("identifier", metavar="ID", type=names.Id())
@click.option("--dry-run", is_flag=True, help="Print the missing objects; fetch only records.")
@click.option("--no-data", is_flag=True, help="Leave out datasets that stay in their remotes.")
@cluster_options.command_on
@output.json_command
def command(
    context: click.Context, identifier: str, dry_run: bool, no_data: bool, on: str | None, as_json: bool
) -> None:
    """Download a snapshot or run into this machine's cache.

    ID is a snapshot or a run. For a run, its snapshot and its newest checkpoint are downloaded. A job that starts
    later reads from the local disk, so prefetch before you book GPUs. Every byte is verified. To continue an
    interrupted prefetch, repeat the command. Datasets that stay in their remotes are downloaded too. A dataset that is
    larger than the cache is left out, because a run reads such a dataset while it trains.

    \b
    Example:
      m5ws prefetch 7c1d
    """
    from m5ws.data import prefetching
    from m5ws.repository.references import ids, runs
    from m5ws.repository.transfer import prefetch

    workspace = names.workspace(context)
    repo = workspace.repository()
    kind, name = ids.resolve(repo, identifier)
    if on is not None:
        return cluster_options.submit_command(context, workspace, repo, name, on, as_json=as_json)
    planned = prefetch.plan(repo, kind, name)
    snapshot = name if kind == "snapshot" else runs.load(repo, name).snapshot
    uses = [] if no_data else prefetching.uses(repo, snapshot, workspace.files)
    if planned.cached and not dry_run:
        with progress.Bar() as bar:
            prefetch.apply(repo, planned, bar)
    for use, files in uses:
        if not use.fits:
            output.print_note(f"{use.name} is left out: it is larger than the cache ([store] cache_limit)")
        elif not dry_run:
            with progress.Bar() as bar:
                prefetching.fetch(files, bar)
    if as_json:
        data = [{**msgspec.structs.asdict(use), "crossing_bytes": use.crossing_bytes} for use, _ in uses]
        return output.print_json({**_document(planned, dry_run), "data": data})
    output.echo(_text(planned, dry_run))
    for use, _ in uses:
        fetched = use.fits and not dry_run
        output.echo(data_lines.describe(use) + (", and were fetched" if fetched and use.missing else ""))
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
