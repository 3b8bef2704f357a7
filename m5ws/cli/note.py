"""`m5ws note`."""

from typing import get_args

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress
from m5ws.records.note import NoteOutcome


@click.command("note")
@click.argument("run", type=names.Id(("run",)))
@click.argument("text", type=names.Text())
@click.option(
    "--outcome",
    type=click.Choice(get_args(NoteOutcome)),
    help="Result of the expectation that the run was started with.",
)
@output.json_command
def command(context: click.Context, run: str, text: str, outcome: NoteOutcome | None, as_json: bool) -> None:
    """Add a note to a run.

    Notes are only added, never changed. `m5ws run --why TEXT` stores the expectation of a new run. `m5ws show` and the
    run's page in MLflow show all notes.

    \b
    Example:
      m5ws note 7c1d 'warmup made no difference' --outcome refuted
    """
    from m5ws.library import actions

    workspace = names.workspace(context)
    with progress.Bar() as bar:
        bar("storing the note, and showing it in MLflow", 0, 0)
        repo = workspace.open_repository()
        written = actions.write_note(workspace, names.find_id(repo, run, "run"), text, outcome=outcome)
        note, problem = actions.publish_note(workspace, repo, written)
    if problem is not None:
        output.warn(f"the store has the note, MLflow does not: {problem}")
    if as_json:
        output.print_json(note)
    else:
        output.print_note(f"noted: run {note.run}")
