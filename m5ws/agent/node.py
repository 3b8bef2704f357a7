"""One node of an attempt: it admits the processes, delivers their events to the ledger, and keeps their results.

Ranks write only to local spools. Events that the store does not take stay there and are delivered later, in order,
once. The leader of the attempt (`attempts/leader.py`) sees each event, and decides about the attempt.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from m5ws.agent import admission, stop
from m5ws.agent.admission import Waiting
from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.delivery import Delivery
from m5ws.agent.moved_bytes import MovedBytes
from m5ws.agent.nccl_logs import NcclLogs
from m5ws.agent.ports import Ports
from m5ws.agent.read_files import ReadFiles
from m5ws.agent.results import Results
from m5ws.agent.store_thread import StoreThread
from m5ws.agent.watcher import Watcher
from m5ws.errors import M5Error
from m5ws.launch.interface import LEFT_PROCESSES, Process
from m5ws.logs.parts import LogParts
from m5ws.outputs import killed
from m5ws.progress import Progress, report
from m5ws.records.ledger import AnyEvent, Notify
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.spool import Spools, SpoolWriter
from m5ws.repository.references import snapshots
from m5ws.work import directories
from m5ws.work.directories import WorkDirectory

_POLL_S = 0.1
_STOPPING = "stopping the ranks, which may save a last checkpoint (Ctrl-C again ends them at once)"

Events = list[tuple[str, AnyEvent]]
"""Events with their ranks, in the order of each rank."""
Listen = Callable[[Events], object]
"""Called with new events several times a second. It may wait for the store."""
Show = Callable[[Events], float | None]
"""Called with the same events as they are written, without a wait. If it returns seconds, the processes are stopped,
with that time to end."""


class NodeEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a node's processes, with their exit status and its time in seconds since the epoch.

    `request`: the signal by which the user stopped them. `problem`: why they could not be started.
    """

    exit_code: int
    time_s: float
    request: str | None = None
    problem: str | None = None


class Node:
    """The processes of one attempt on this machine. `notify` writes a notice of a kind and with a message."""

    def __init__(
        self,
        ports: Ports,
        plan: AttemptPlan,
        work: WorkDirectory,
        waiting: Waiting,
        spool: SpoolWriter,
        notify: Notify,
        progress: Progress | None,
    ) -> None:
        self._ports, self._plan, self._work, self._progress = ports, plan, work, progress
        self._waiting, self._notify = waiting, notify
        self.results = Results(ports.repo, plan, work.path, spool, notify)
        self.delivery = Delivery(
            ports.repo, plan.run.id, plan.attempt, Path(plan.context.spool_dir), node=plan.place.node
        )
        self._spools = Spools(Path(plan.context.spool_dir))
        declared = snapshots.load(ports.repo, plan.run.snapshot).declared
        self.nccl = NcclLogs(Path(plan.context.spool_dir), spool, declared, waiting.observed)
        self._reads = ReadFiles(ports.repo, plan, spool, notify)
        self._moved = MovedBytes(plan, spool)
        self.watcher = Watcher(ports.stuck, plan)
        folder = Path(plan.context.log_dir)
        self._logs = LogParts(ports.repo, plan.run.id, plan.attempt, plan.place.node, folder)

    def run(
        self,
        listen: Listen,
        show: Show,
        poll: Callable[[], None],
        asked: Callable[[str], None],
        goes_on: Callable[[], bool] = lambda: False,
    ) -> NodeEnd:
        """Run the script to its end, and while the attempt `goes_on` on other nodes.

        `poll` is called several times a second, and once after the end.
        `asked` is called with the name of the signal by which the user stops the processes, before they get it.
        `listen` is called in another thread, which has ended when this returns.
        """
        process, beside = self._waiting.process, StoreThread(partial(self._use_store, listen))
        # Another thread: a long upload of output files would delay new lines.
        logs = StoreThread(self._logs.store)
        try:
            self.results.begin()
            admission.permit(self._ports, self._plan, self._waiting.observed)
            report(self._progress, "running the script")
            beside.begin()
            logs.begin()
            ended = self._ended(self._follow(process, beside, show, poll, goes_on))
            beside.end()
        except KeyboardInterrupt as request:
            report(self._progress, _STOPPING)
            asked(stop.name_of(request))
            name, status = stop.at_request(process, self._plan.context.saving, request)
            return self._ended(status, request=name)
        except M5Error as error:
            self._notify("launch-failed", f"{error}\n{error.hint}".strip())
            return self._ended(1, problem=str(error))
        else:
            return ended
        finally:
            stop.early(process)
            try:
                beside.end()
            finally:
                logs.end()

    def deliver_rest(self) -> Events:
        """Deliver all that processes left in their spools, with notices of refusals and of processes that are left."""
        self.nccl.finish()
        with suppress(FileNotFoundError):
            for line in Path(self._plan.request.processes, LEFT_PROCESSES).read_text().splitlines():
                pid, _, command = line.partition(" ")
                self._notify("left-process", f"process {pid} outlived the script, and was ended: {command}")
        self._logs.store(last=True)
        self._reads.record(last=True)
        self._reads.report()
        return self.delivery.deliver(final=True)

    def keep_results(self, *, has_finished: bool, is_stopped: bool) -> str | None:
        """Store the results of the processes. Return the reason if the store did not take all of it; else None.

        `has_finished`: the attempt has ended well so far. `is_stopped`: the user stopped it.
        """
        self.results.report_modified()
        if self._plan.place.node == 0:  # Rank 0 publishes the checkpoints.
            self.results.record_published(is_delivered=self.delivery.complete, is_stopped=is_stopped)
        directories.keep_links(self._work)
        if has_finished and self._plan.run.purpose == "train" and self.results.unsaved is None:
            killed.mark_done(self._plan.directory)
        report(self._progress, "storing output files")
        self.results.keep_outputs()
        self._moved.record(last=True)
        return self.results.unsaved

    def read_new(self) -> Events:
        """Return the events that were written since the last call, from the spools."""
        return [(origin, ledger.decode_event(event)) for origin, new in self._spools.read().items() for event in new]

    def _use_store(self, listen: Listen) -> None:
        self._reads.record()
        self._moved.record()
        listen(self.delivery.deliver())
        self.results.copy()

    def _follow(
        self, process: Process, beside: StoreThread, show: Show, poll: Callable[[], None], goes_on: Callable[[], bool]
    ) -> int:
        is_stopped = False
        while (exit_code := process.poll()) is None or (exit_code == 0 and not is_stopped and goes_on()):
            time.sleep(_POLL_S)
            poll()
            beside.raise_error()
            self.nccl.poll()
            new = self.read_new()
            self.watcher.take(new)
            for slow in self.watcher.find_slow():
                self._notify("slow-rank", slow)
            grace_s = show(new)
            if grace_s is not None and not is_stopped:
                is_stopped = True
                process.stop(grace_s)
        self.watcher.has_ended = True
        poll()
        show(self.read_new())
        return exit_code

    def _ended(self, exit_code: int, *, request: str | None = None, problem: str | None = None) -> NodeEnd:
        """Return the end of the processes at this moment. The store may take its record much later."""
        return NodeEnd(exit_code=exit_code, time_s=time.time(), request=request, problem=problem)
