"""`m5ws outputs`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress
from m5ws.errors import AmbiguousId, NotFound, UsageError
from m5ws.outputs import saved

if TYPE_CHECKING:
    from m5ws.outputs.saved import OutputsRow, StoredOutputs
    from m5ws.repository.repository import Repository


@click.command("outputs")
@click.argument("run", type=names.Id(("run",)))
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.option("--attempt", type=click.IntRange(min=1), help="Write the files of this attempt, and not the newest.")
@click.option("--node", type=click.IntRange(min=0), help="Write the files of this node alone.")
@click.option("--copies", is_flag=True, help="List all copies, also copies made while the script ran.")
@output.json_command
def command(
    context: click.Context,
    run: str,
    directory: Path | None,
    attempt: int | None,
    node: int | None,
    copies: bool,
    as_json: bool,
) -> None:
    """List a run's output files, or write them to a new directory.

    Output files are the files and folders of `[run] outputs`. With DIRECTORY, write the files of the
    newest attempt: its final files, or the last copy if the attempt has no end. DIRECTORY must be empty or missing.
    Every byte is verified. The files of several nodes are merged.

    Without DIRECTORY, list the newest output files of each attempt and node. --copies lists all copies that
    the store has. Each has the files of one moment. `m5ws resume RUN --at TIME` restores a copy. TIME is the
    copy's time or name, or the first characters of either.

    \b
    Examples:
      m5ws outputs 7c1d /tmp/model
      m5ws outputs 7c1d --copies
    """
    from m5ws.outputs import restoring

    _, repo, run_id = names.open_run(context, run)
    if directory is None:
        for name, value in (("--attempt", attempt), ("--node", node)):
            if value is not None:
                raise UsageError(f"{name} needs a directory to write to", hint="`m5ws outputs RUN` lists all attempts.")
        return _list(repo, run_id, as_json, copies=copies)
    if copies:
        raise UsageError("--copies lists the copies, and writes no files", hint="Leave out the directory.")
    stored = saved.require_newest(repo, run_id, attempt, node)
    with progress.Bar() as bar:
        tree = restoring.write(repo, stored, directory, bar)
    if as_json:
        written = {"files": len(tree.entries), "size_bytes": tree.size_bytes, "directory": directory.absolute()}
        return output.print_json({"run": run_id, "attempt": stored.attempt, "final": stored.final, **written})
    when = "at its end" if stored.final else "while it ran"
    size = output.size(tree.size_bytes)
    whose = f"of run {run_id}, attempt {stored.attempt} {when}"
    output.echo(f"{len(tree.entries):,} files, {size}, {whose}, in {directory}")
    return None


def find_copy(repo: "Repository", run: str, text: str) -> "StoredOutputs":
    """Return the output files of a run with the time or name `text`, or its begin. Raises NotFound, AmbiguousId."""
    from m5ws.repository.references import outputs as stored_outputs

    known = stored_outputs.names(repo, run)
    times = {name: output.moment(saved.stored_s(repo, run, name)) for name in known}
    matches = [name for name in known if text and (name.startswith(text) or times[name].startswith(text))]
    if not matches:
        raise NotFound(
            f"run {run} has no output files of {text!r}", hint=f"`m5ws outputs {run} --copies` lists the copies."
        )
    if len({stored_outputs.at(known, name) for name in matches}) > 1:
        described = ", ".join(f"{name} ({times[name]})" for name in matches)
        raise AmbiguousId(f"{text!r} matches {len(matches)} copies: {described}", hint="Give the name of one.")
    return saved.load(repo, run, matches[0])


def _list(repo: "Repository", run_id: str, as_json: bool, *, copies: bool) -> None:

    rows = saved.listing(repo, run_id)
    if not copies:
        rows = tuple({row.name.rpartition("-")[0]: row for row in rows}.values())
    if as_json:
        return output.print_json({"run": run_id, "outputs": rows})
    return output.echo(table(rows)) if rows else output.print_note(f"run {run_id} has no output files in the store")


def table(rows: "Sequence[OutputsRow]") -> str:
    """Return a table of output files."""
    cells = [
        (
            row.name,
            str(row.attempt),
            "at the end" if row.final else "while it ran",
            output.moment(row.when_s),
            f"{row.files:,}",
            output.size(row.size_bytes),
            output.short(row.content),
        )
        for row in rows
    ]
    return output.table(("OUTPUT FILES", "ATTEMPT", "MADE", "TIME", "FILES", "SIZE", "CONTENT"), cells)
