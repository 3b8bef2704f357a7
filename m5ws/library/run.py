"""`m5ws.Run`: one run of a store, for notebooks and scripts."""

import datetime as dt
import logging
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from m5ws.checkpoints import listing, resolve
from m5ws.checkpoints.export import export
from m5ws.checkpoints.listing import CheckpointInfo
from m5ws.errors import UsageError
from m5ws.library import actions
from m5ws.outputs import restoring, saved
from m5ws.records.note import Note, NoteOutcome
from m5ws.records.run import Run as RunRecord
from m5ws.records.verdict import Verdict
from m5ws.repository.ledger.losses import number
from m5ws.repository.references import notes, runs
from m5ws.repository.references.parameters import ParameterReader
from m5ws.repository.repository import Repository
from m5ws.runs import history
from m5ws.runs.listing import RunRow
from m5ws.workspace import Workspace, export_tools

if TYPE_CHECKING:
    from m5ws.training.tools.load_tensors import StateDict

_log = logging.getLogger(__name__)


class Run:
    """A run, made by `Workspace.run` and `Workspace.runs`.

    Properties are as of the moment when the run was read; `Workspace.run(run.id)` reads the run again. Methods read the
    store when they are called. They raise NotFound for a missing object, and CorruptObject for a damaged object.
    """

    def __init__(self, workspace: Workspace, repo: Repository, row: RunRow) -> None:
        self._workspace, self._repo, self._row = workspace, repo, row

    @property
    def id(self) -> str:
        """The run's id: 12 hex digits."""
        return self._row.id

    @property
    def name(self) -> str | None:
        """The display name, or None."""
        return self._row.name

    @property
    def state(self) -> str:
        """State of the newest attempt: created, running, finished, failed, interrupted or unsaved; or damaged."""
        return "damaged" if self._row.problem else self._row.standing

    @property
    def snapshot(self) -> str | None:
        """The id of the snapshot; None for a damaged run."""
        return self._row.snapshot

    @property
    def created(self) -> dt.datetime:
        """The time of the run's start by the store's clock, in UTC."""
        return dt.datetime.fromtimestamp(self._row.created_s, dt.UTC)

    @property
    def user(self) -> str | None:
        """The user who started the run; None if the record has no user."""
        return self._row.user

    @property
    def host(self) -> str | None:
        """The host on which the run was started; None if the record has no host."""
        return self._row.host

    @property
    def reproduces(self) -> str | None:
        """The id of the run that this run replays, or None."""
        return self._row.reproduces

    @property
    def step(self) -> int:
        """The last step that is done, 0 before the first."""
        return self._row.last_step

    @property
    def total_steps(self) -> int | None:
        """The planned number of steps, or None if it is unknown."""
        return self._row.total_steps

    @property
    def loss(self) -> float | None:
        """The last loss on rank 0, or None."""
        return self._row.loss

    @property
    def lowest_loss(self) -> float | None:
        """The lowest loss on rank 0, or None."""
        return self._row.lowest_loss

    @cached_property
    def parameters(self) -> dict[str, str]:
        """The inputs by name: keys of config files, `args.NAME`, `launch.FIELD`, and digests of the snapshot's parts.

        Values are text.
        """
        return ParameterReader(self._repo).of_run(self._record)

    def steps(self, rank: int = 0) -> list[dict[str, float]]:
        """Return the recorded steps of a rank, in order, one dict a step.

        Keys: `step`, each recorded quantity that is a number, such as `loss`, and `seconds`, `tokens` and `time_s` (end
        of the step, in seconds since the epoch) unless a quantity has that name. Numbers have the recorded bits. A step
        that a later attempt did again has the values of that attempt.
        """
        recorded = history.load(self._repo, self.id, ranks={str(rank)}).steps.get(rank, {})
        rows: list[dict[str, float]] = []
        for step in map(recorded.__getitem__, recorded):
            numbers = {name: number(text) for name, text in step.quantities.items() if name != "step"}
            quantities = {name: value for name, value in numbers.items() if value is not None}
            facts: dict[str, float] = {"seconds": step.seconds, "tokens": step.tokens, "time_s": step.time_s}
            rows.append({"step": step.step, **facts, **quantities})
        return rows

    def metrics(self, rank: int = 0) -> Any:
        """Return `steps(rank)` as a pandas DataFrame with `step` as its index; the list itself without pandas."""
        steps = self.steps(rank)
        try:
            import pandas as pd
        except ModuleNotFoundError:
            return steps
        return pd.DataFrame(steps, columns=None if steps else ["step"]).set_index("step")

    def checkpoints(self) -> list[CheckpointInfo]:
        """Return the published checkpoints in order of steps, as `m5ws checkpoint ls` does."""
        return listing.list_checkpoints(self._repo, self.id)

    def load(self, part: str = "model", step: int | None = None) -> "StateDict":
        """Return one part of a checkpoint as tensors on the CPU by name, every byte verified.

        `model` has parameters and buffers by the model's own names, for `load_state_dict`. `optimizer` has the
        optimizer's tensors as `state.NAME.KEY`, the names of torch's flattened optimizer state dict. `step` is the step
        after which the checkpoint was made; None is the newest checkpoint. Raises NotFound, UsageError for a part that
        the checkpoint lacks, CorruptObject, and MissingExtra without torch.
        """
        name = self.id if step is None else f"{self.id}@{step}"
        which = resolve.resolve(self._repo, name)
        return export.load(self._repo, which, part, export_tools())

    def outputs(self, directory: str | os.PathLike[str]) -> Path:
        """Write the run's newest output files to a missing or empty directory, and return it, as `m5ws outputs` does.

        Raises UsageError if the directory has files, and NotFound if the run has no output files.
        """
        target = Path(directory)
        restoring.write(self._repo, saved.require_newest(self._repo, self.id), target)
        return target

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts that name this run, as the original or as a replay, oldest first."""
        return runs.verdicts(self._repo, self.id)

    def notes(self) -> list[Note]:
        """Return the notes about the run, oldest first."""
        return notes.load(self._repo, self.id)

    def note(self, text: str, outcome: NoteOutcome | None = None) -> Note:
        """Add a note to the run, as `m5ws note` does, and return it.

        `outcome` judges the expectation of the run: supported, refuted or open. Credentials are masked. Raises
        UsageError for another outcome, and for an empty text or one of more than 10,000 characters.
        """
        if outcome is not None and outcome not in get_args(NoteOutcome):
            raise UsageError(f"unknown outcome {outcome!r}", hint=f"It is one of {', '.join(get_args(NoteOutcome))}.")
        written = actions.write_note(self._workspace, self.id, text, outcome=outcome)
        note, problem = actions.publish_note(self._workspace, self._repo, written)
        if problem is not None:
            _log.warning("the store has the note, MLflow does not: %s", problem)
        return note

    @cached_property
    def _record(self) -> RunRecord:
        return runs.load(self._repo, self.id)

    def __repr__(self) -> str:
        name = "" if self.name is None else f" {self.name!r}"
        total = f" of {self.total_steps}" if self.total_steps else ""
        return f"<m5ws.Run {self.id}{name}: {self.state}, step {self.step}{total}>"
