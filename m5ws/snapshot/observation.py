"""Looks that begin before they are asked for, so that waits overlap.

At a working tree, so that git works while Python imports: the first answer is of a moment after the look was begun,
every later one is asked for anew. And at this machine, so that torch is asked while files are uploaded.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from m5ws.environment.interface import Observer
from m5ws.records.base import Digest
from m5ws.records.environment import Observed
from m5ws.snapshot.sources.interface import Glance, SourceControl, SourceState


class Ahead:
    """`SourceControl`, asked for a glance at `root` at once.

    `seen` says that the workspace was looked at before; if not, no glance spares the look, and that is begun too.
    """

    def __init__(self, source: SourceControl, root: Path, *, seen: bool = True) -> None:
        self._source = source
        self._root = root
        # Begun here: a thread would wait for its turn, while this one imports, before each of git's processes.
        self._glancing: Callable[[], Glance | None] | None = source.glance(root)
        self._state: Future[SourceState] | None = None
        if not seen:
            pool = ThreadPoolExecutor(1, thread_name_prefix="m5ws-ahead")
            self._state = pool.submit(source.state, root)
            pool.shutdown(wait=False)

    def glance(self, root: Path) -> Callable[[], Glance | None]:
        """As `SourceControl.glance`; raises what that raises."""
        ahead, self._glancing = self._glancing, None
        return ahead if ahead is not None and root == self._root else self._source.glance(root)

    def state(self, root: Path) -> SourceState:
        """As `SourceControl.state`; raises what that raises. What was asked ahead is returned once."""
        state, self._state = self._state, None
        return state.result() if state is not None and root == self._root else self._source.state(root)


class Observation:
    """What `observer` says of this machine, asked once and kept by `keep`, from `begin` on.

    Safe to begin in any thread.
    """

    def __init__(self, observer: Observer, variables: Mapping[str, str], keep: Callable[[Observed], Digest]) -> None:
        self._observer = observer
        self._variables = variables
        self._keep = keep
        self._lock = threading.Lock()
        self._found: Future[Digest] | None = None

    def begin(self) -> Future[Digest]:
        """Begin, unless that was done, and return what is to come."""
        with self._lock:
            if self._found is None:
                pool = ThreadPoolExecutor(1, thread_name_prefix="m5ws-observe")
                self._found = pool.submit(lambda: self._keep(self._observer.observe(self._variables)))
                pool.shutdown(wait=False)
            return self._found

    def result(self) -> Digest:
        """Return what it was kept as; raises as `Observer.observe` and `keep`."""
        return self.begin().result()
