"""Observations in the background, so that waits overlap.

Git compares the working tree while Python imports modules; the result is used once, and later calls start git again.
The observation of this machine starts a process with torch while files are uploaded.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from m5ws.environment.interface import Observer
from m5ws.records.base import Digest
from m5ws.records.environment import Observed
from m5ws.snapshot.sources.interface import Glance, SourceControl, SourceState


class BackgroundSource:
    """`SourceControl` that starts a glance at `root` at once.

    `seen`: the workspace was captured before. Otherwise no glance can be used, and the full state is started too.
    """

    def __init__(self, source: SourceControl, root: Path, *, seen: bool = True) -> None:
        self._source = source
        self._root = root
        # Not in a thread: it would wait for the interpreter's lock before each of git's processes.
        self._glancing: Callable[[], Glance | None] | None = source.glance(root)
        self._state: Future[SourceState] | None = None
        if not seen:
            pool = ThreadPoolExecutor(1, thread_name_prefix="m5ws-ahead")
            self._state = pool.submit(source.state, root)
            pool.shutdown(wait=False)

    def glance(self, root: Path) -> Callable[[], Glance | None]:
        """As `SourceControl.glance`, with its errors."""
        ahead, self._glancing = self._glancing, None
        return ahead if ahead is not None and root == self._root else self._source.glance(root)

    def state(self, root: Path) -> SourceState:
        """As `SourceControl.state`, with its errors. The state from the background is returned once."""
        state, self._state = self._state, None
        return state.result() if state is not None and root == self._root else self._source.state(root)


class Observation:
    """The observed environment of this machine, stored by `keep`. `begin` starts it once, from any thread."""

    def __init__(self, observer: Observer, variables: Mapping[str, str], keep: Callable[[Observed], Digest]) -> None:
        self._observer = observer
        self._variables = variables
        self._keep = keep
        self._lock = threading.Lock()
        self._digest: Future[Digest] | None = None

    def begin(self) -> Future[Digest]:
        """Start the observation, unless it was started, and return the future digest of its record."""
        with self._lock:
            if self._digest is None:
                pool = ThreadPoolExecutor(1, thread_name_prefix="m5ws-observe")
                self._digest = pool.submit(lambda: self._keep(self._observer.observe(self._variables)))
                pool.shutdown(wait=False)
            return self._digest

    def result(self) -> Digest:
        """Return the digest of the record. Raises as `Observer.observe` and `keep`."""
        return self.begin().result()
