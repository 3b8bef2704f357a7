"""The watcher of a node's ranks: it notices a rank without progress, and takes evidence about all ranks and the node.

It reads events that ranks write anyway, so it is not on the step path. Evidence is taken in a thread. It decides
nothing: the leader of the attempt does (attempts/stuck_ranks.py). It also finds slow ranks.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.sampler import Sampler
from m5ws.config.settings import StuckSettings
from m5ws.records.ledger import NODE, AnyEvent, RankStarted
from m5ws.records.nodes import Reported
from m5ws.records.stacks import RankStack
from m5ws.supervision import evidence, flight_recorder, processes, vote
from m5ws.supervision.progress import EXIT, Progress, Waiting

_log = logging.getLogger(__name__)
_ACTIVITY_S = 10.0
"""Seconds between two looks at processors and logs."""
_BUSY = 0.05
"""Part of one processor that shows that a process works. Threads of libraries that only wait use less."""
_PARALLEL = 8
_EARLIER_S = 300.0
"""Time before the last progress whose lines of the kernel's log are evidence too."""
_CONTAINER = "the ranks run in a container, whose processes m5ws does not read"


class Watcher:
    """Watches the ranks of a node. Without `settings` it notices nothing, and takes stacks when the leader asks."""

    def __init__(
        self, settings: StuckSettings | None, plan: AttemptPlan, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan, self._clock, self._is_on = plan, clock, settings is not None
        limits = settings or StuckSettings()
        if plan.context.trace is not None:
            # A traced step takes much longer than all steps before it.
            limits = msgspec.structs.replace(limits, floor_s=limits.ceiling_s)
        self._progress = Progress(limits)
        self._pids: dict[str, int] = {}
        self.world = 0
        """The number of ranks of the attempt."""
        self._ranks: dict[str, Waiting] = {}
        self._activity: dict[str, tuple[float, float]] = {}
        self._active_s = clock()
        self._thread: threading.Thread | None = None
        self._report: Reported | None = None
        is_sampled = self._is_on and plan.context.image is None and plan.context.trace is None
        self._sampler = Sampler(plan.context.work_dir, clock) if is_sampled else None
        self.has_ended = False
        """True when the processes of the node have ended."""

    @property
    def is_suspicious(self) -> bool:
        """True if a rank is late."""
        return self._is_on and not self.has_ended and any(each.is_late for each in self._ranks.values())

    def take(self, events: Iterable[tuple[str, AnyEvent]]) -> None:
        """Take new events of the node. Called several times a second."""
        now_s = self._clock()
        for rank, event in events:
            if isinstance(event, RankStarted):
                self._pids[rank], self.world = event.pid, event.world
            if rank != NODE:
                self._progress.take(rank, event, now_s)
        if self._is_on and now_s - self._active_s > _ACTIVITY_S:
            self._note_activity(now_s)
        self._ranks = self._progress.look(now_s)

    def find_slow(self) -> list[str]:
        """Return sentences about new slow ranks. Called several times a second."""
        return self._sampler.look(self._ranks, self._pids) if self._sampler is not None else []

    def begin(self) -> None:
        """Begin to take the evidence, unless that has begun."""
        if self._thread is None and not self.has_ended:
            ranks = dict(self._ranks)
            self._thread = threading.Thread(target=self._take_stacks, args=(ranks,), name="m5ws-stacks", daemon=True)
            self._thread.start()

    @property
    def is_done(self) -> bool:
        """True if all evidence is taken."""
        return self._report is not None

    def result(self) -> Reported | None:
        """Return the evidence once, when all is taken; None before. A rank that goes on meanwhile is not late."""
        if self._report is None:
            return None
        report, self._report, self._thread = self._report, None, None
        late = {int(rank) for rank, waiting in self._ranks.items() if waiting.is_late}
        ranks = (msgspec.structs.replace(each, is_late=each.is_late and each.rank in late) for each in report.ranks)
        return msgspec.structs.replace(report, ranks=tuple(ranks))

    def _note_activity(self, now_s: float) -> None:
        """Note the ranks that used a processor or wrote output since the last call."""
        elapsed_s, self._active_s = now_s - self._active_s, now_s
        for rank, waiting in self._ranks.items():
            size = 0.0
            with suppress(OSError):
                size = float(Path(self._plan.context.log_dir, f"rank-{rank}.log").stat().st_size)
            last_size, last_s = self._activity.get(rank, (0.0, 0.0))
            if size != last_size:
                self._progress.note_activity(rank, "output", now_s)
            # The processor time in a container is unknown, and an unknown rank is not late.
            is_free = self._plan.context.image is not None
            # A rank that has ended waits for nothing.
            is_free = is_free or (waiting.phase == EXIT and processes.read_state(self._pids[rank]) in vote.ENDED)
            used_s = 0.0 if is_free else processes.read_processor_s(self._pids[rank])
            if is_free or abs(used_s - last_s) > _BUSY * elapsed_s:
                self._progress.note_activity(rank, "processor", now_s)
            self._activity[rank] = size, used_s

    def _take_stacks(self, ranks: dict[str, Waiting]) -> None:
        bare = tuple(self._describe(rank, ranks[rank]) for rank in sorted(ranks))
        since_s = max((each.waited_s for each in bare), default=0.0) + _EARLIER_S
        try:
            with ThreadPoolExecutor(_PARALLEL + 1) as pool:
                node = pool.submit(evidence.take, socket.gethostname(), since_s)
                stacks = tuple(pool.map(self._with_stack, bare))
            self._report = Reported(ranks=stacks, node=node.result())
        except Exception as error:  # noqa: BLE001  # without a report, the attempt would go on for ever
            _log.warning("the stacks of the ranks cannot be taken: %s", error)
            self._report = Reported(ranks=bare)

    def _describe(self, rank: str, waiting: Waiting) -> RankStack:
        return RankStack(
            rank=int(rank),
            host=socket.gethostname(),
            pid=self._pids[rank],
            step=waiting.step,
            phase=waiting.phase,
            waited_s=round(waiting.waited_s, 1),
            limit_s=round(waiting.limit_s, 1),
            is_late=waiting.is_late,
        )

    def _with_stack(self, bare: RankStack) -> RankStack:
        """Return a rank with its stack, the state of its process and its last collectives."""
        folder, found = Path(self._plan.context.spool_dir), dict[str, Any](problem=_CONTAINER)
        if self._plan.context.image is None:
            found["frames"], found["problem"] = processes.take_stack(bare.pid, self._plan.context.work_dir)
            found["state"], found["wchan"] = processes.read_state(bare.pid), processes.read_wchan(bare.pid)
        found["collectives"], found["unrecorded"] = flight_recorder.read(folder, bare.rank)
        return msgspec.structs.replace(bare, **found)
