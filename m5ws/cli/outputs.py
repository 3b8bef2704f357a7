"""`m5ws outputs`."""

from pathlib import Path

import click

from m5ws.cli import names, output, progress
from m5ws.errors import NotFound


@click.command("outputs")
@click.argument("run", type=names.Id(("run",)))
@click.argument("directory", type=click.Path(path_type=Path))
@output.json_option
@click.pass_context
def command(context: click.Context, run: str, directory: Path, as_json: bool) -> None:
    """Write the files that a run's script wrote into a new directory.

    They are those of the folders in `[run] outputs`: as the newest attempt left them or, if it did not end, as
    they were copied while it ran. Every byte is checked. DIRECTORY must be empty or not there.

    \b
    Example:
      m5ws outputs 7c1d /tmp/model
    """
    from m5ws.operations import restored_outputs

    repo = names.settled(names.workspace(context))
    run_id = names.found(repo, run, "run")
    stored = restored_outputs.newest(repo, run_id)
    if stored is None:
        raise NotFound(
            f"run {run_id} has no output files in the store",
            hint="`[run] outputs` in m5ws.toml names the folders that a script writes to.",
        )
    with progress.Bar() as bar:
        tree = restored_outputs.write(repo, stored, directory, bar)
    if as_json:
        found = {"files": len(tree.entries), "size_bytes": tree.size_bytes, "directory": directory.absolute()}
        return output.print_json({"run": run_id, "attempt": stored.attempt, "final": stored.final, **found})
    when = "at its end" if stored.final else "while it ran"
    size = output.size(tree.size_bytes)
    whose = f"of run {run_id}, attempt {stored.attempt} {when}"
    output.echo(f"{len(tree.entries):,} files, {size}, {whose}, in {directory}")
    return None
