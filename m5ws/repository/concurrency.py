"""Jobs in threads, with a limit on the bytes in flight, so that memory does not grow with the work."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

T = TypeVar("T")
A = TypeVar("A")

_THREADS = 16
"""More threads than processors: most of them wait for a disk or a network."""
_BUDGET_BYTES = 512 * 2**20

Job = tuple[int, Callable[[], T]]
"""The maximum memory of a job in bytes, and the job."""


def for_each(work: Callable[[A], T], items: Iterable[A]) -> Iterator[T]:
    """Yield the results of `work` for each item, in order. For work that waits for a store and needs little memory."""
    jobs = [(0, partial(work, item)) for item in items]
    return bounded_map(jobs) if len(jobs) > 1 else (work() for _, work in jobs)


def bounded_map(jobs: Iterable[Job[T]]) -> Iterator[T]:
    """Run `jobs` in threads, and yield their results in order.

    A job starts when all jobs in flight hold at most _BUDGET_BYTES with it, or when it is alone. After the first error
    no job starts, and the jobs in progress are awaited.
    """
    pending: deque[tuple[int, Future[T]]] = deque()
    held_bytes = 0
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="m5ws-flight") as pool:
        try:
            for size, job in jobs:
                while pending and (held_bytes + size > _BUDGET_BYTES or len(pending) > 4 * _THREADS):
                    done, future = pending.popleft()
                    yield future.result()
                    held_bytes -= done
                held_bytes += size
                pending.append((size, pool.submit(job)))
            while pending:
                yield pending.popleft()[1].result()
        finally:
            for _, future in pending:
                future.cancel()
