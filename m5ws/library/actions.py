"""Actions of the command line and of the Python interface on a workspace."""

import time
from typing import TYPE_CHECKING, Literal

from m5ws.errors import M5Error
from m5ws.records.note import Note, NoteOutcome
from m5ws.workspace import Workspace

if TYPE_CHECKING:
    from m5ws.progress import Progress
    from m5ws.repository.repository import Repository
    from m5ws.snapshot.context import Warn
    from m5ws.snapshot.snapshot import CapturedSnapshot


def take_snapshot(
    workspace: Workspace,
    repo: "Repository",
    message: str | None,
    progress: "Progress | None",
    warn: "Warn",
    *,
    dry_run: bool = False,
    observe: bool = True,
) -> "CapturedSnapshot":
    """Take a snapshot of a workspace; with `dry_run`, publish nothing. Raises as `snapshot.take` does."""
    from m5ws.snapshot import snapshot

    return snapshot.take(
        workspace.root,
        workspace.settings,
        repo,
        workspace.source(),
        workspace.datasets(),
        workspace.tokenizers(),
        workspace.observer(),
        workspace.index_path,
        message,
        progress,
        warn,
        dry_run,
        observe,
    )


def write_note(
    workspace: Workspace,
    run: str,
    text: str,
    *,
    kind: Literal["why", "note"] = "note",
    outcome: NoteOutcome | None = None,
) -> Note:
    """Return a note of this workspace's user."""
    return Note(run=run, text=text, kind=kind, outcome=outcome, author=workspace.author(), created_s=time.time())


def publish_note(workspace: Workspace, repo: "Repository", written: Note) -> tuple[Note, str | None]:
    """Publish a note and show it in MLflow. Return the note, and the reason why MLflow does not have it, or None.

    Raises UsageError for a text that cannot be a note.
    """
    from m5ws.repository.references import notes

    notes.refuse_invalid(written.text)
    note = notes.publish(repo, written)
    try:
        if (tracker := workspace.tracker()) is not None:
            tracker.refresh(note.run)
    except (M5Error, OSError) as error:
        return note, str(error)
    return note, None
