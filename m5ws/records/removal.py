"""Record of the removal of a run. No I/O here."""

from m5ws.records.base import RunId, SealedRecord


class Removal(SealedRecord, tag="removal/1", frozen=True, kw_only=True):
    """The user has removed a run: lists leave it out, and gc deletes its checkpoints and output files."""

    run: RunId
    author: str | None = None
    created_s: float = 0.0
