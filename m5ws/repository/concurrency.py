"""Jobs in threads, with a bound on the bytes that are in flight: memory does not grow with the work."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

T = TypeVar("T")
A = TypeVar("A")

_THREADS = 16

Job = tuple[int, Callable[[], T]]
"""What a job holds in memory at most, in bytes, and the job."""


def each(work: Callable[[A], T], items: Iterable[A]) -> Iterator[T]:
    """Return what `work` makes of each item, in order, for work that waits for a store and holds little; as `fly`."""
    jobs = [(0, partial(work, item)) for item in items]
    return fly(jobs, _THREADS, 0) if len(jobs) > 1 else (work() for _, work in jobs)


def fly(jobs: Iterable[Job[T]], threads: int, budget_bytes: int) -> Iterator[T]:
    """Do `jobs` in `threads` threads and yield their results in order.

    A job starts only when all that are in flight hold `budget_bytes` at most together with it, or when it is alone.
    The first error ends it: jobs that have begun are waited for, others are not begun.
    """
    pending: deque[tuple[int, Future[T]]] = deque()
    held = 0
    with ThreadPoolExecutor(threads, thread_name_prefix="m5ws-flight") as pool:
        try:
            for size, job in jobs:
                while pending and (held + size > budget_bytes or len(pending) > 4 * threads):
                    done, future = pending.popleft()
                    yield future.result()
                    held -= done
                held += size
                pending.append((size, pool.submit(job)))
            while pending:
                yield pending.popleft()[1].result()
        finally:
            for _, future in pending:
                future.cancel()
