"""The results of one attempt: its checkpoints and output files.

Results that the store does not take are kept on this machine, and `unsaved` has the reason.
"""

import logging
import time
from pathlib import Path

import msgspec

from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.errors import M5Error
from m5ws.outputs import collect, copies, restoring, storing, unrecorded, unsaved
from m5ws.outputs.collect import Outputs
from m5ws.records.launch import UNSAVED
from m5ws.records.ledger import AnyEvent, CheckpointPublished, Notice, Notify
from m5ws.repository.ledger.spool import SpoolWriter
from m5ws.repository.publishing import repeated
from m5ws.repository.repository import Repository
from m5ws.work import inputs

_log = logging.getLogger(__name__)


class Results:
    """The results of an attempt in the work directory `work`, whose inputs are there already.

    `notify` writes a notice of a kind and with a message to the ledger.
    """

    def __init__(self, repo: Repository, plan: AttemptPlan, work: Path, spool: SpoolWriter, notify: Notify) -> None:
        self._repo = repo
        self._plan = plan
        self._work = work
        self._spool = spool
        self._notify = notify
        self._published: set[str] = set()
        self._inputs = inputs.AttemptInputs(begun_ns=work.stat().st_ctime_ns, stamps=inputs.stamps(work))
        minutes, index, node = plan.run.spec.checkpoint_minutes, plan.directory / "copies", plan.place.node
        self._copying = copies.OutputCopier(repo, plan.run, plan.attempt, minutes, index, self._collect, node)
        self.unsaved: str | None = None

    def begin(self) -> None:
        """Restore the output files of an earlier attempt, if the plan has them. Raises M5Error, OSError."""
        if self._plan.outputs is not None:
            message = restoring.restore(self._repo, self._plan.outputs, self._work)
            known = self._inputs.stamps.items()
            restored = {path: each for path, each in inputs.stamps(self._work).items() if (path, each) not in known}
            self._inputs = msgspec.structs.replace(self._inputs, restored=restored)
            self._notify("outputs-restored", message)
        try:
            # From here on, a recovery after a kill stores the output files. Before, they may be partly restored.
            inputs.save(self._plan.directory, self._work, self._inputs)
        except OSError as error:
            _log.warning("after a kill, the output files of run %s will not be stored: %s", self._plan.run.id, error)

    def add(self, event: AnyEvent) -> None:
        """Take one event of the ledger."""
        if isinstance(event, CheckpointPublished):
            self._published.add(event.name)
            self.unsaved = None
        if isinstance(event, Notice) and event.kind == "save-failed":
            self.unsaved = event.message

    def copy(self) -> None:
        """Copy output files to the store, if it is time."""
        if (problem := self._copying.copy()) is not None:
            self._notify("limit", f"the output files were not copied: {problem}")

    def report_modified(self) -> None:
        """Record the inputs that the run has changed."""
        for path in inputs.modified(self._work, self._inputs.stamps):
            self._notify("input-modified", inputs.describe_modified(path))

    def record_published(self, *, is_delivered: bool, is_stopped: bool) -> None:
        """Record the checkpoints that a rank published just before it was killed.

        `is_delivered`: the ledger has all events. `is_stopped`: the user stopped the attempt.
        """
        # Ctrl-C may have come between the delivery of an event and its processing.
        known = () if is_stopped else self._published
        run, attempt = self._plan.run.id, self._plan.attempt
        try:
            for event in unrecorded.events(self._repo, run, attempt, known) if is_delivered else ():
                self._spool.append(event)
        except (M5Error, OSError) as error:
            _log.warning("cannot list the checkpoints of run %s: %s", run, error)

    def keep_outputs(self) -> None:
        """Store all that the attempt left in `[run] outputs`. Files that are not stored are noted in the ledger."""
        if self.unsaved is not None:
            # Without a copy of the checkpoint, late output files do not complete the attempt.
            (self._plan.directory / UNSAVED).mkdir(exist_ok=True)
        try:
            left, declared = self._collect(), self._plan.run.spec.outputs
            stamps = self._inputs.stamps
            for line in collect.describe_others(self._plan.directory, self._work, declared, stamps, left):
                self._notify("outputs-not-kept", line)
            repeated(lambda: self._publish(left))
        except (M5Error, OSError) as error:
            self.unsaved = f"the output files were not stored: {error}"
            self._notify("outputs-not-stored", self.unsaved)

    def remove_inputs(self) -> None:
        """Remove the unchanged inputs, which the store has."""
        inputs.remove(self._work, self._inputs.stamps)

    def _collect(self) -> Outputs:
        return collect.collect(self._work, self._plan.run.spec.outputs, self._inputs)

    def _publish(self, left: Outputs) -> None:
        # Until they are stored, the attempt counts as not delivered.
        waiting = self._plan.directory / unsaved.OUTPUTS
        storing.wait(waiting, left)
        stored = storing.publish(self._repo, self._plan.run, self._plan.attempt, left, self._plan.place.node)
        waiting.unlink()
        if stored is not None:
            self._spool.append(msgspec.structs.replace(stored, time_s=time.time()))
