"""The tracker of a running attempt, which follows the ledger in a process of its own. Its errors never fail a run."""

import logging
import time

from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.ports import Ports
from m5ws.errors import M5Error
from m5ws.progress import Progress, report
from m5ws.tracking.interface import TRACKED, Delivering

_SHARE = 100
_LONGEST_S = 60.0
_log = logging.getLogger(__name__)


class Tracking:
    """The tracker of one attempt, from its announcement to the wait at the end; nothing if the ports have none."""

    def __init__(self, ports: Ports, plan: AttemptPlan) -> None:
        self._tracker, self._plan = ports.tracker, plan
        self._began_s = time.monotonic()
        self._follower: Delivering | None = None

    def announce(self) -> None:
        """Announce the use of the tracker."""
        try:
            if self._tracker is not None:
                self._tracker.announce()
        except OSError as error:
            _log.warning("the tracker cannot be prepared: %s", error)

    def follow(self) -> None:
        """Announce new events of the ledger.

        The follower starts at the first call, after the script: its start would take time of a processor from the
        ranks'.
        """
        run = self._plan.run.id
        try:
            if self._follower is None and self._tracker is not None:
                self._follower = self._tracker.follow(run)
        except (M5Error, OSError) as error:
            _log.warning("the tracker does not follow run %s: %s", run, error)
        if self._follower is not None:
            self._follower.wake()

    def close(self, progress: Progress | None) -> str | None:
        """Return None if the tracker has all of the run; else the reason, which may be empty: the delivery goes on.

        The wait is a hundredth of the attempt, at most a minute: a batch system ends all processes with the command,
        and so the delivery of a run that it started.
        """
        if self._tracker is None:
            (self._plan.directory / TRACKED).touch()
            return None
        if self._follower is None:
            return "it could not be started"
        report(progress, "waiting for MLflow to have all records of the run")
        is_tracked = self._follower.close(min((time.monotonic() - self._began_s) / _SHARE, _LONGEST_S))
        return None if is_tracked else self._follower.problem
