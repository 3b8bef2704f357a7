"""The plan of an attempt: a record, which the leader and the nodes of the attempt execute."""

from pathlib import Path

import msgspec

from m5ws.outputs.saved import StoredOutputs
from m5ws.records.launch import ALONE, Context, LaunchRequest, Place
from m5ws.records.note import Note
from m5ws.records.run import Run


class AttemptPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt, ready for execution, with its own `directory`. It starts from the checkpoint `resume`.

    `outputs`: if there is no such checkpoint, output files of an earlier attempt to restore. `why`: the expectation of
    a new run, which is published with the run. `place` is the place of this machine among the nodes.
    """

    run: Run
    attempt: int
    directory: Path
    context: Context
    request: LaunchRequest
    resume: str | None = None
    inherits: tuple[str, ...] = ()
    """The checkpoints that were valid at planning. Later publications of older attempts are ignored."""
    outputs: StoredOutputs | None = None
    why: Note | None = None
    place: Place = ALONE
    restart: str | None = None
    """Why m5ws began this attempt by itself, after a failure. None if a user began it."""

    @property
    def from_scratch(self) -> bool:
        """Return True if an attempt other than the first has nothing to resume from."""
        return self.attempt > 1 and self.resume is None and self.outputs is None
