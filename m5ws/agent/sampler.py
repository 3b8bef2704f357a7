"""The samples of the stacks of a node's ranks, from which slow ranks are found (supervision/slow_ranks.py).

py-spy reads rank by rank from outside, without a stop, in at most a twentieth of the time.
"""

import random
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from m5ws.supervision import processes, vote
from m5ws.supervision.progress import Waiting
from m5ws.supervision.slow_ranks import SlowRanks

_INTERVAL_S = 20.0
"""The mean time between two samples. It is random: a fixed time might be a multiple of the time of a step."""
_REST = 20
"""The time between two samples is on average at least this many times the duration of one."""
_MOST_FAILURES = 10
"""Samples in a row with a missing stack, after which no more are taken."""


class Sampler:
    """Takes a sample of all ranks now and then, in a thread of its own."""

    def __init__(self, work_dir: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._work_dir, self._clock = work_dir, clock
        self._slow, self._found = SlowRanks(socket.gethostname()), list[str]()
        self._thread: threading.Thread | None = None
        self._next_s, self._failures = clock() + _INTERVAL_S, 0
        self._steps: dict[int, int] = {}

    def look(self, ranks: Mapping[str, Waiting], pids: Mapping[str, int]) -> list[str]:
        """Begin a sample if it is due: all ranks have completed a step since the last sample, and are in a step.

        Return sentences about new slow ranks. Never waits.
        """
        steps = {int(rank): waiting.step for rank, waiting in ranks.items() if waiting.phase == "step"}
        is_due = self._clock() > self._next_s and self._failures < _MOST_FAILURES and len(steps) == len(ranks) > 1
        if self._thread is not None and self._thread.is_alive():
            return []
        found, self._found = self._found, []
        if is_due and all(step > self._steps.get(rank, 0) for rank, step in steps.items()):
            self._steps, self._next_s = steps, self._clock() + _INTERVAL_S
            arguments = ({rank: pids[str(rank)] for rank in steps}, steps)
            self._thread = threading.Thread(target=self._sample, args=arguments, name="m5ws-sample", daemon=True)
            with suppress(RuntimeError):  # No thread is left.
                self._thread.start()
        return found

    def _sample(self, pids: Mapping[int, int], steps: Mapping[int, int]) -> None:
        begin_s = self._clock()
        order = random.sample(sorted(pids), len(pids))
        stacks = {rank: processes.take_stack(pids[rank], self._work_dir)[0] for rank in order}
        self._failures = 0 if all(stacks.values()) else self._failures + 1
        if not self._failures:
            self._found = self._slow.add({rank: vote.find_phase(frames) for rank, frames in stacks.items()}, steps)
        now_s = self._clock()
        self._next_s = now_s + max(_INTERVAL_S, _REST * (now_s - begin_s)) * random.uniform(0.5, 1.5)
