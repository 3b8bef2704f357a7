"""`m5ws checkout`."""

from pathlib import Path

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress


@click.command("checkout")
@click.argument("snapshot", type=names.Id())
@click.argument("directory", type=click.Path(path_type=Path))
@output.json_command
def command(context: click.Context, snapshot: str, directory: Path, as_json: bool) -> None:
    """Write a snapshot's files to a new directory.

    SNAPSHOT is an id or a unique prefix; a run stands for its snapshot. DIRECTORY must be empty or missing. The files
    are copies, which you may change. Every byte is verified.

    \b
    Example:
      m5ws checkout 1f3a9c /tmp/as-it-was
    """
    from m5ws.repository.files import materialise, trees
    from m5ws.repository.references import ids, runs, snapshots

    repo = names.workspace(context).repository()
    kind, record_id = ids.resolve(repo, snapshot)
    snapshot_id = runs.load(repo, record_id).snapshot if kind == "run" else record_id
    parts = [trees.load(repo.objects, tree) for tree in snapshots.load(repo, snapshot_id).trees.values()]
    with progress.Bar() as bar:
        materialise.materialise(repo.objects, parts, directory, bar, read_only=False)
    files, size_bytes = sum(len(part.entries) for part in parts), sum(part.size_bytes for part in parts)
    if as_json:
        return output.print_json(
            {"snapshot": snapshot_id, "directory": directory.absolute(), "files": files, "size_bytes": size_bytes}
        )
    output.echo(f"{files:,} files, {output.size(size_bytes)}, of snapshot {output.short(snapshot_id)} in {directory}")
    return None
