"""Records of others that end a running attempt: a newer attempt, the removal of the run, and a request to cancel it.

The attempt publishes its start first and then reads them. Its publications are fenced even before it reads. An error of
the store changes nothing: the attempt goes on, and looks again.
"""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.ports import Ports
from m5ws.errors import M5Error
from m5ws.records.failure import EndReason
from m5ws.records.job import Job
from m5ws.repository import removals
from m5ws.repository.ledger import ledger
from m5ws.repository.references import jobs
from m5ws.repository.repository import Repository

if TYPE_CHECKING:
    from m5ws.records.job import Cancel
    from m5ws.records.ledger import AttemptStarted

_log = logging.getLogger(__name__)
_INTERVAL_S = 30.0
_WAITING_S = 10.0
"""The interval while a leader waits for its followers."""
_Found = TypeVar("_Found")


class Cancelled(M5Error):
    """A job was cancelled before its agents began, by a user or by an agent that cannot begin."""

    exit_code = 130


def refuse_cancelled_job(repo: Repository, job: Job) -> None:
    """Raise Cancelled if a request in the store has cancelled a job."""
    if (request := jobs.cancel_of_job(repo, job)) is not None:
        raise _cancelled(f"job {job.name}", request)


def _cancelled(what: str, request: "Cancel") -> Cancelled:
    where = request.host or "another machine"
    return Cancelled(f"{what} was cancelled from {where}" + (f": {request.problem}" if request.problem else ""))


class Interventions:
    """Known interventions in one attempt, each None if there is none."""

    def __init__(self, ports: Ports, plan: AttemptPlan) -> None:
        self._repo, self._job, self._run, self._attempt = ports.repo, ports.job, plan.run, plan.attempt
        self._looked_s = time.monotonic()
        self.successor: AttemptStarted | None = None
        self.removal: str | None = None
        self.cancel: Cancel | None = None

    def refuse_cancelled(self) -> None:
        """Read cancellations at intervals, before the attempt begins. Raises Cancelled."""
        if time.monotonic() - self._looked_s > _WAITING_S:
            self._looked_s = time.monotonic()
            self._look_for_cancel()
        if self.cancel is not None:
            raise _cancelled(f"run {self._run.id}", self.cancel)

    def look_after_start(self) -> None:
        """Read removals and cancellations after the start is published. No newer attempt can have begun."""
        self.look_for_removal()
        self._look_for_cancel()

    def look_after_end(self) -> None:
        """Read newer attempts and removals when the processes have ended."""
        self._look_for_successor()
        self.look_for_removal()

    def look_at_intervals(self) -> bool:
        """Read all at intervals. Return True if the attempt is fenced: then no rank needs more steps."""
        if time.monotonic() - self._looked_s < _INTERVAL_S:
            return False
        self._looked_s = time.monotonic()
        self._look_for_cancel()
        self._look_for_successor()
        return self.successor is not None or self.look_for_removal()

    def look_for_removal(self) -> bool:
        """Read removals. Return True if the run is removed, or a run that it rests on."""
        self.removal = self._read(self._find_removal, "a removal") or self.removal
        return self.removal is not None

    def fence(self, exit_code: int) -> tuple[int, EndReason] | None:
        """Return the exit status and the reason of a fenced attempt, whose processes ended with `exit_code`."""
        if self.removal is not None:
            return removals.Removed.exit_code, EndReason(kind="removed", problem=self.removal)
        if (later := self.successor) is not None:
            return exit_code, EndReason(kind="superseded", attempt=later.attempt, host=later.host)
        return None

    def _find_removal(self) -> str | None:
        try:
            removals.refuse(self._repo, self._run.id, *removals.origins(self._run))
        except removals.Removed as error:
            return str(error)
        return None

    def _look_for_successor(self) -> None:
        found = self._read(lambda: ledger.successor(self._repo, self._run.id, self._attempt), "a newer attempt")
        self.successor = found or self.successor

    def _look_for_cancel(self) -> None:
        wanted = (self._run.id, self._attempt, self._job)
        found = self._read(lambda: jobs.cancel_of_attempt(self._repo, *wanted), "a cancellation")
        self.cancel = found or self.cancel

    def _read(self, find: Callable[[], _Found | None], what: str) -> _Found | None:
        try:
            return find()
        except (M5Error, OSError) as error:
            _log.warning("cannot check for %s of run %s: %s", what, self._run.id, error)
            return None
