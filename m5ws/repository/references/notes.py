"""Notes about runs: `notes/<run>/…`, each written once.

They are beside `runs/`, so one listing names all runs with notes.
"""

from collections.abc import Sequence

from m5ws import secret_gate
from m5ws.errors import UsageError
from m5ws.records.note import Note, NoteOutcome
from m5ws.repository import bindings
from m5ws.repository.repository import Repository

PREFIX = "notes/"
_MOST_CHARACTERS = 10_000


def refuse_invalid(text: str) -> None:
    """Raise UsageError if a text is empty or too long for a note."""
    if not text.strip():
        raise UsageError("the text of the note is empty")
    if len(text) > _MOST_CHARACTERS:
        raise UsageError(f"the note has {len(text):,} characters, but at most {_MOST_CHARACTERS:,} are stored")


def prefix(run_id: str) -> str:
    """Return the key prefix of the notes about a run."""
    return f"{PREFIX}{run_id}/"


def publish(repo: Repository, note: Note) -> Note:
    """Publish a note about a published run, and return it as stored, with secrets masked."""
    return bindings.create_at(repo.store, prefix(note.run), note.created_s, secret_gate.masked(note))


def load(repo: Repository, run_id: str) -> list[Note]:
    """Return the notes about a run, oldest first. Raises CorruptObject, Misplaced, UnknownSchema."""
    return list(bindings.records(repo.store, prefix(run_id), Note).values())


def annotated_runs(repo: Repository) -> frozenset[str]:
    """Return the ids of all runs with notes. One listing."""
    return frozenset(repo.store.names(PREFIX))


def why(notes: Sequence[Note]) -> str | None:
    """Return the expectation with which a run was started, or None."""
    return next((note.text for note in notes if note.kind == "why"), None)


def outcome(notes: Sequence[Note]) -> NoteOutcome | None:
    """Return the newest outcome in notes, or None."""
    return next((note.outcome for note in reversed(notes) if note.outcome is not None), None)
