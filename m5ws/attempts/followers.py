"""The followers of an attempt, as its leader sees them: the agents on the other nodes (follower.py).

An attempt on one machine has none, and takes the same way.
"""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.link import Follower, Listener, StartAgain
from m5ws.launch.interface import LaunchFailed
from m5ws.progress import Progress, report
from m5ws.records.environment import Observed
from m5ws.records.failure import EndReason
from m5ws.records.launch import Place
from m5ws.records.nodes import (
    Begun,
    Closed,
    Ended,
    Inexact,
    Message,
    Planned,
    Ready,
    Reported,
    Stop,
    Storing,
    Suspected,
    TakeStacks,
)

_POLL_S = 0.05
_REFUSAL_S = 120.0


class Followers:
    """All followers of an attempt. The listener is open until `close`.

    `lost` is the reason of the end if a node is lost, else None. `asked` is the request of a follower whose user stops
    it, else None. `is_suspicious`: a rank of a follower makes no progress.
    """

    def __init__(self, plan: AttemptPlan, key: bytes) -> None:
        self._plan = plan
        self._listener = Listener(plan.place, key) if plan.place.nodes > 1 else None
        self._all: list[Follower] = []
        self._observed: dict[str, Observed] = {}
        self._is_stopping = False
        self.lost: EndReason | None = None
        self.asked: Stop | None = None
        self.inexact: EndReason | None = None
        self.is_suspicious = False
        self._reports: dict[int, Reported] = {}

    def gather(self, join_s: float, poll: Callable[[], None], progress: Progress | None) -> None:
        """Wait for all followers, which upload their copies of checkpoints before they come. Raises StartAgain."""
        if self._listener is not None:
            self._all = self._listener.wait(join_s, poll, lambda line: report(progress, line))

    def send_plan(self, plan: AttemptPlan) -> None:
        """Tell all followers the plan."""
        names = plan.outputs.names if plan.outputs is not None else ()
        self._send(Planned(run=plan.run, context=plan.context, inherits=plan.inherits, outputs=names))

    def observed(self, poll: Callable[[], None]) -> Mapping[str, Observed]:
        """Return the environment of each follower by its name, when all their ranks wait. Raises as `poll`."""
        while len(self._observed) < len(self._all):
            poll()
            time.sleep(_POLL_S)
        return self._observed

    def begin(self) -> None:
        """Let the ranks of all followers begin the script: the attempt is in the ledger."""
        self._send(Begun())

    def refuse_lost(self) -> None:
        """Raise StartAgain if a follower is lost, LaunchFailed if it could not start its processes."""
        self.look()
        for follower in self._all:
            if follower.ended is not None:
                raise LaunchFailed(f"{follower}: {follower.ended.problem or 'its processes ended'}")
        if self.lost is not None:
            raise StartAgain(str(self.lost.problem))

    def look(self) -> None:
        """Take the messages of all followers."""
        for follower in self._all:
            try:
                while follower.ended is None and (message := follower.connection.receive()) is not None:
                    self._take(follower, message)
            except StartAgain as error:
                self.lost = self.lost or EndReason(kind="node lost", problem=f"{follower} was lost: {error}")

    @property
    def has_failed(self) -> bool:
        """True if a follower is lost, or if its processes failed: the other ranks would wait for its ranks."""
        return self.lost is not None or any(follower.ended and follower.ended.exit_code for follower in self._all)

    @property
    def is_training(self) -> bool:
        """True while processes of a follower run that need not end yet: one rank may work on after the training.

        They must end if somebody stopped them, or if a node has failed.
        """
        is_running = any(follower.ended is None and not follower.is_storing for follower in self._all)
        return is_running and not (self.has_failed or self._is_stopping or self.asked is not None)

    def stop(self, grace_s: float, number: int = signal.SIGTERM) -> None:
        """Stop the processes of all followers once, in this time."""
        if not self._is_stopping:
            self._is_stopping = True
            self._send(Stop(grace_s=grace_s, signal=number))

    def take_stacks(self) -> None:
        """Ask all followers for the stacks of their ranks."""
        self._reports = {}
        self._send(TakeStacks())

    @property
    def have_reported(self) -> bool:
        """True if all followers whose processes run have sent the stacks of their ranks."""
        running = (each for each in self._all if each.ended is None and not each.is_storing)
        return all(each.node in self._reports for each in running)

    def take_reports(self) -> list[Reported]:
        """Return the evidence that has come. The followers may suspect again."""
        reports, self._reports, self.is_suspicious = self._reports, {}, False
        return list(reports.values())

    def await_ends(self, seconds: float, progress: Progress | None) -> list[Ended]:
        """Return the ends of all followers. A follower whose processes end late counts as lost."""
        end_s = time.monotonic() + seconds
        while late := [follower for follower in self._all if follower.ended is None]:
            self.look()
            if self.lost is not None:
                break
            running = [follower for follower in late if not follower.is_storing]
            if running and time.monotonic() > end_s:
                self.lost = EndReason(kind="node lost", problem=f"{running[0]} did not end in {seconds:.0f} s")
            report(progress, f"waiting for the end of {late[0]}")
            time.sleep(_POLL_S)
        return [follower.ended for follower in self._all if follower.ended is not None]

    def close(self, exit_code: int, *, is_refused: bool = False) -> None:
        """Tell all followers the exit status, and close the link.

        With `is_refused`, the leader begins no attempt. It waits for a while for followers that have not come.
        """
        if self._listener is not None and not self._all:
            self._all = _gather_refused(self._listener) if is_refused else self._listener.followers
        self._send(Closed(exit_code=exit_code))
        self._all = []
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _send(self, message: Message) -> None:
        for follower in self._all:
            follower.connection.send(message)

    def _take(self, follower: Follower, message: Message) -> None:
        if isinstance(message, Ready):
            self._observed[str(follower)] = message.observed
        elif isinstance(message, Stop):
            self.asked = message
        elif isinstance(message, Inexact):
            self.inexact = self.inexact or EndReason(kind="inexact resume", problem=message.problem)
        elif isinstance(message, Suspected):
            self.is_suspicious = True
        elif isinstance(message, Reported):
            self._reports[follower.node] = message
        elif isinstance(message, Storing):
            follower.is_storing = True
        elif isinstance(message, Ended):
            follower.ended = message


def refuse(place: Place, key: bytes, exit_code: int) -> None:
    """Tell all followers the exit status of a leader that has no plan."""
    with suppress(StartAgain):
        listener = Listener(place, key)
        for follower in _gather_refused(listener):
            follower.connection.send(Closed(exit_code=exit_code))
        listener.close()


def _gather_refused(listener: Listener) -> list[Follower]:
    """Return the followers that come within a while: the engine started them together with the leader."""
    with suppress(StartAgain):
        listener.wait(_REFUSAL_S, lambda: None, lambda _: None)
    return listener.followers
