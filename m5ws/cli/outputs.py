"""`m5ws outputs`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from m5ws.repository.repository import Repository
    from m5ws.runs.outputs.restored_outputs import OutputsRow


@click.command("outputs")
@click.argument("run", type=names.Id(("run",)))
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.option("--attempt", type=click.IntRange(min=1), help="Write the files of this attempt, and not the newest.")
@output.json_option
@click.pass_context
def command(context: click.Context, run: str, directory: Path | None, attempt: int | None, as_json: bool) -> None:
    """List a run's output files, or write them to a new directory.

    Output files are the files in the folders of `[run] outputs`. With DIRECTORY, write those of the newest attempt:
    its final files, or the last copies if it did not end. DIRECTORY must be empty or missing. Every byte is verified.

    Without DIRECTORY, list all that the store has: the final files of each attempt, and copies made while it ran. A
    resume of an attempt that did not finish may get other files; a notice of the next attempt names them.

    \b
    Example:
      m5ws outputs 7c1d /tmp/model
    """
    from m5ws.runs.outputs import restored_outputs

    repo = names.open_repository(names.workspace(context))
    run_id = names.find_id(repo, run, "run")
    if directory is None:
        if attempt is not None:
            raise UsageError("--attempt needs a directory to write to", hint="`m5ws outputs RUN` lists all attempts.")
        return _list(repo, run_id, as_json)
    stored = restored_outputs.require_newest(repo, run_id, attempt)
    with progress.Bar() as bar:
        tree = restored_outputs.write(repo, stored, directory, bar)
    if as_json:
        written = {"files": len(tree.entries), "size_bytes": tree.size_bytes, "directory": directory.absolute()}
        return output.print_json({"run": run_id, "attempt": stored.attempt, "final": stored.final, **written})
    when = "at its end" if stored.final else "while it ran"
    size = output.size(tree.size_bytes)
    whose = f"of run {run_id}, attempt {stored.attempt} {when}"
    output.echo(f"{len(tree.entries):,} files, {size}, {whose}, in {directory}")
    return None


def _list(repo: "Repository", run_id: str, as_json: bool) -> None:
    from m5ws.runs import state
    from m5ws.runs.outputs import restored_outputs

    rows = restored_outputs.listing(repo, run_id, state.load(repo, run_id))
    if as_json:
        return output.print_json({"run": run_id, "outputs": rows})
    return output.echo(table(rows)) if rows else output.print_note(f"run {run_id} has no output files in the store")


def table(rows: "Sequence[OutputsRow]") -> str:
    """Return a table of output files."""
    cells = [
        (
            str(row.attempt),
            "at the end" if row.final else "copy",
            output.moment(row.when_s),
            f"{row.files:,}",
            output.size(row.size_bytes),
            output.short(row.content),
        )
        for row in rows
    ]
    return output.table(("OUTPUTS OF ATTEMPT", "MADE", "WHEN", "FILES", "SIZE", "CONTENT"), cells)
