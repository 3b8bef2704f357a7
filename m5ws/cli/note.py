"""`m5ws note`."""

import time
from typing import TYPE_CHECKING, Literal, get_args

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output
from m5ws.errors import M5Error
from m5ws.records.note import Note, NoteOutcome

if TYPE_CHECKING:
    from m5ws.workspace import Workspace


@click.command("note")
@click.argument("run", type=names.Id(("run",)))
@click.argument("text", type=names.Text())
@click.option(
    "--outcome",
    type=click.Choice(get_args(NoteOutcome)),
    help="Result of the expectation that the run was started with.",
)
@output.json_option
@click.pass_context
def command(context: click.Context, run: str, text: str, outcome: NoteOutcome | None, as_json: bool) -> None:
    """Add a note to a run.

    Notes are only added, never changed. `m5ws run --why TEXT` stores the expectation of a new run. `m5ws show` and the
    run's page in MLflow show all notes, and `m5ws ls --where 'note ~ "TEXT"'` finds them.

    \b
    Example:
      m5ws note 7c1d 'warmup made no difference' --outcome refuted
    """
    from m5ws.repository import notes

    refuse_invalid(text)
    workspace = names.workspace(context)
    repo = names.open_repository(workspace)
    written = write(workspace, names.find_id(repo, run, "run"), text, outcome=outcome)
    note = notes.publish(repo, written)
    _track(workspace, note)
    if as_json:
        output.print_json(note)
    else:
        output.print_note(f"noted: run {note.run}")


def refuse_invalid(text: str) -> None:
    """Raise UsageError for a text that cannot be a note."""
    from m5ws.repository import notes

    notes.refuse_invalid(text)


def write(
    workspace: "Workspace",
    run: str,
    text: str,
    *,
    kind: Literal["why", "note"] = "note",
    outcome: NoteOutcome | None = None,
) -> Note:
    """Return a note of this workspace's user, with credentials masked."""
    from m5ws import secret_scan

    masked = secret_scan.masked(text)
    return Note(run=run, text=masked, kind=kind, outcome=outcome, author=workspace.author(), created_s=time.time())


def _track(workspace: "Workspace", note: Note) -> None:
    """Show a published note in MLflow. A failure is a message: the store has the note."""
    try:
        if (tracker := workspace.tracker()) is not None:
            tracker.refresh(note.run)
    except (M5Error, OSError) as error:
        output.warn(f"the store has the note, MLflow does not: {error}")
