"""A look at a working tree that begins before it is asked for, so that git works while Python imports.

The first answer is of a moment after the look was begun; every later one is asked for anew.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from m5ws.ports import SourceControl, SourceState


class Ahead:
    """`ports.SourceControl`, asked once for `root` at once."""

    def __init__(self, source: SourceControl, root: Path) -> None:
        self._source = source
        self._root = root
        pool = ThreadPoolExecutor(1, thread_name_prefix="m5ws-ahead")
        self._first: Future[SourceState] | None = pool.submit(source.state, root)
        pool.shutdown(wait=False)

    def state(self, root: Path) -> SourceState:
        """As `SourceControl.state`; raises what that raises."""
        first, self._first = self._first, None
        return first.result() if first is not None and root == self._root else self._source.state(root)
