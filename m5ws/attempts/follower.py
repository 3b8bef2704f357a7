"""A follower of an attempt: the agent on a node that does not lead.

It takes number and checkpoint of the attempt from its leader, and delivers the events of its ranks in a chain of its
own. Without its leader it ends.
"""

import socket
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from m5ws.agent import admission, failure, link, prepare, run_lock, stop, work_files
from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.link import Connection, StartAgain
from m5ws.agent.node import Events, Node, NodeEnd
from m5ws.agent.ports import Ports
from m5ws.attempts import repeated_steps
from m5ws.errors import Fenced, M5Error
from m5ws.progress import Progress, report
from m5ws.records import codec
from m5ws.records.environment import Observed
from m5ws.records.launch import Place
from m5ws.records.ledger import NODE, NodeStarted, Notice, NoticeKind, RankEnded
from m5ws.records.nodes import Begun, Closed, Ended, Inexact, Planned, Ready, Stop, Storing, Suspected, TakeStacks
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.ledger import ChainWriter
from m5ws.repository.ledger.spool import SpoolWriter
from m5ws.repository.transfer import local_copies
from m5ws.work import directories

if TYPE_CHECKING:
    from m5ws.agent.watcher import Watcher

_POLL_S = 0.05
_RETRY_S = 1.0
_LOOK_S = 10.0
_UNDELIVERED = "the store did not take all events of a node"


class NotBegun(M5Error):
    """The leader did not begin the attempt. Node 0 printed the error, whose exit status this error has."""

    def __init__(self, closed: Closed) -> None:
        super().__init__("the leader did not begin the attempt", hint="Node 0 printed the reason.")
        self.exit_code = closed.exit_code


def join(place: Place, key: bytes, join_s: float, look: Callable[[], None]) -> tuple[Connection, Planned]:
    """Return a connection to the leader, and its plan, after all nodes have come. Raises StartAgain, NotBegun.

    The leader of an earlier attempt, which is still at its end, closes the connection: then the next leader is tried.
    `look` is called at intervals, and may raise an error: a leader that has nothing to do says nothing.
    """
    end_s = time.monotonic() + join_s
    while True:
        connection: Connection | None = None
        try:
            connection = link.join(place, key, min(_LOOK_S, end_s - time.monotonic()))
            return connection, _await_plan(connection, end_s, look)
        except StartAgain:
            if connection is not None:
                connection.close()
            if time.monotonic() > end_s - _RETRY_S:
                raise
            look()
            time.sleep(_RETRY_S)


def _await_plan(connection: Connection, end_s: float, look: Callable[[], None]) -> Planned:
    looked_s = time.monotonic()
    while time.monotonic() < end_s:
        if time.monotonic() - looked_s > _LOOK_S:
            look()
            looked_s = time.monotonic()
        message = connection.receive()
        if isinstance(message, Planned):
            return message
        if isinstance(message, Closed):
            raise NotBegun(message)
        time.sleep(_POLL_S)
    raise StartAgain("the leader sent no plan")


def execute(ports: Ports, plan: AttemptPlan, connection: Connection, progress: Progress | None) -> int:
    """Run the processes of this node to their end, and return the exit status of the attempt.

    Raises StartAgain without a leader, NotBegun, LaunchFailed, RunAlive.
    """
    home = plan.directory.parent
    home.mkdir(parents=True, exist_ok=True)
    with run_lock.lock_run(home, notify=partial(report, progress)):
        prepare.clear(plan)
        try:
            plan, work = prepare.prepare(ports, plan, progress)
            following = _Following(ports, plan, connection)
            head = ledger.start_of(plan.run.id, plan.attempt, plan.place.node)
            with (
                admission.launched(ports, plan, following.accept, progress, following.poll) as waiting,
                closing(SpoolWriter(Path(plan.context.spool_dir) / f"{NODE}.spool", head)) as spool,
            ):
                following.begin(waiting.observed, spool)
                node = Node(ports, plan, work, waiting, spool, following.notify, progress)
                status = following.run(node)
        finally:
            directories.end(plan.directory)
        if status == 0 and not ports.keep_work:
            work_files.remove_outputs(ports.repo, plan.run.id, plan.attempt, plan.directory)
        if status == 0:
            local_copies.remove(plan.context.local, plan.run.id)
        return status


def give_up(connection: Connection, error: Exception) -> None:
    """Tell the leader why this node cannot go on. A node that is lost in silence lets all agents start again."""
    connection.send(Ended(exit_code=1, problem=str(error)))


class _Following:
    """The work of one follower. `asked` is the leader's request to stop the processes."""

    def __init__(self, ports: Ports, plan: AttemptPlan, connection: Connection) -> None:
        self._ports, self._plan, self._connection = ports, plan, connection
        self._spool: SpoolWriter | None = None
        self._failures = failure.Failures()
        self._repeated = repeated_steps.RepeatedSteps(ports.repo, plan.run.id, plan.attempt)
        self._asked: Stop | None = None
        self._closed: Closed | None = None
        self._is_begun = self._is_lost = self._has_suspected = False
        self._watcher: Watcher | None = None

    def poll(self) -> None:
        """Take the leader's messages before the script begins. Raises StartAgain, NotBegun."""
        self._look()
        if self._closed is not None:
            raise NotBegun(self._closed)
        if self._is_lost:
            raise StartAgain("the leader was lost")

    def accept(self, observed: Observed) -> None:
        """Wait until the leader has accepted the environments of all nodes, and the attempt is in the ledger."""
        self._connection.send(Ready(observed=observed))
        while not self._is_begun:
            self.poll()
            time.sleep(_POLL_S)
        started = ledger.started(self._ports.repo, self._plan.run.id, self._plan.attempt)
        if started is None or (started.job, started.nodes) != (self._plan.place.job, self._plan.place.nodes):
            raise Fenced(f"attempt {self._plan.attempt} of run {self._plan.run.id} has begun elsewhere")

    def begin(self, observed: Observed, spool: SpoolWriter) -> None:
        """Publish the start of this node in its chain."""
        self._spool, repo, place = spool, self._ports.repo, self._plan.place
        put = partial(repo.objects.put_record, observed)
        event = NodeStarted(time_s=time.time(), node=place.node, host=socket.gethostname(), observed=put())
        spool.append(event)
        writer = ChainWriter(repo, self._plan.run.id, self._plan.attempt, place.node, is_new=True)
        writer.append({NODE: [codec.encode(event)]}, repair=put)

    def run(self, node: Node) -> int:
        """Run the script to its end, deliver all events, and return the exit status that the leader decides."""
        self._watcher = node.watcher
        end = node.run(partial(self._listen, node), self._show, lambda: None, self._tell)
        with stop.unwarned():
            self._connection.send(Storing())
            self._listen(node, node.deliver_rest())
            node.keep_results(has_finished=end.exit_code == 0, is_stopped=end.request is not None)
            if end.exit_code == 0:
                node.results.remove_inputs()
            self._listen(node, node.delivery.finish())
            self._connection.send(self._ended(end, node))
            return self._await_close()

    def _tell(self, name: str) -> None:
        """Tell the leader that the user stops this node, and with it all nodes."""
        patience_s = stop.patience_s(self._plan.context.saving)
        self._connection.send(Stop(grace_s=patience_s, signal=stop.number_of(name)))

    def notify(self, kind: NoticeKind, message: str, step: int | None = None) -> None:
        """Append a notice to the events of this node."""
        assert self._spool is not None
        self._spool.append(Notice(time_s=time.time(), kind=kind, message=message, step=step))

    def _listen(self, node: Node, events: Events) -> None:
        for rank, event in events:
            node.results.add(event)
            self._failures.add(event)
            self._repeated.compare(rank, event)
        for difference in self._repeated.take():
            self.notify("inexact-resume", str(difference), difference.step)
            if self._ports.inexact == "stop":
                self._connection.send(Inexact(problem=str(difference)))

    def _show(self, _: Events) -> float | None:
        """Return the time of the processes to end, if the leader asks for their end or is lost."""
        self._look()
        self._report_stuck()
        if self._asked is not None:
            return self._asked.grace_s
        return stop.GRACE_S if self._is_lost or self._closed is not None else None

    def _report_stuck(self) -> None:
        """Tell the leader about a rank without progress, and send the stacks when they are taken."""
        if self._watcher is None:
            return
        if self._watcher.is_suspicious and not self._has_suspected:
            self._has_suspected = True
            self._connection.send(Suspected())
        if (report := self._watcher.result()) is not None:
            self._has_suspected = False
            self._connection.send(report)

    def _look(self) -> None:
        try:
            while not self._is_lost and (message := self._connection.receive()) is not None:
                self._is_begun = self._is_begun or isinstance(message, Begun)
                if isinstance(message, TakeStacks) and self._watcher is not None:
                    self._watcher.begin()
                elif isinstance(message, Stop):
                    self._asked = message
                elif isinstance(message, Closed):
                    self._closed = message
        except StartAgain:
            self._is_lost = True

    def _ended(self, end: NodeEnd, node: Node) -> Ended:
        ranks: tuple[RankEnded, ...] = tuple(self._failures.ends.values())
        statuses, recorded = failure.read_statuses(Path(self._plan.request.log)), {rank.rank for rank in ranks}
        return Ended(
            exit_code=end.exit_code,
            request=end.request,
            problem=end.problem,
            unsaved=node.results.unsaved or (None if node.delivery.complete else _UNDELIVERED),
            heads=node.delivery.heads(),
            ranks=ranks,
            statuses={str(rank): status for rank, status in statuses.items() if rank not in recorded},
        )

    def _await_close(self) -> int:
        """Return the exit status that the leader decided; without a leader, the request to start again."""
        while self._closed is None and not self._is_lost:
            self._look()
            time.sleep(_POLL_S)
        return link.StartAgain.exit_code if self._closed is None else self._closed.exit_code
