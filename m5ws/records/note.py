"""Record of a note: the text of a person about a run. No I/O here."""

from typing import Literal

from m5ws.records.base import KeyedRecord, RunId

NoteOutcome = Literal["supported", "refuted", "open"]
"""The result of the expectation with which a run was started, as a person judges it."""


class Note(KeyedRecord, tag="note/1", frozen=True, kw_only=True):
    """A note about a run. Notes are only added: a later note has the newer judgement.

    `kind` is "why" for the expectation with which the run was started, else "note".
    """

    run: RunId
    text: str
    kind: Literal["why", "note"] = "note"
    outcome: NoteOutcome | None = None
    author: str | None = None
    created_s: float = 0.0
