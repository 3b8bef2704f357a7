"""Bytes that processes read from S3 and write to S3, by the regions of the bucket and of the machine.

Only the content of requests counts, also of requests that fail later, and no headers. The processes of an attempt
append to one file, so that nothing is lost if a process is killed.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path

NAME = "traffic"
"""Name of the file in the spool directory of an attempt. Each line has two regions ("-": unknown) and two sizes."""
Route = tuple[str, str]


class Traffic:
    """The bytes of this process. Before it has a file, it keeps their sums. Safe in several threads."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._begin()
        # Another thread may hold the lock at the fork, and the sums are the parent's.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock, self._waiting = threading.Lock(), dict[Route, tuple[int, int]]()

    def add(self, bucket: str | None, here: str | None, *, read: int = 0, written: int = 0) -> None:
        """Count the bytes of a request. A region is None if it is unknown."""
        route = bucket or "-", here or "-"
        with self._lock:
            before = self._waiting.get(route, (0, 0))
            self._waiting[route] = before[0] + read, before[1] + written
            self._flush()

    def count_to(self, file: Path | None) -> None:
        """Append all bytes that wait, and all later bytes, to a file; with None, keep the sums again."""
        with self._lock:
            self._file = file
            self._flush()

    def _flush(self) -> None:
        lines = "".join(f"{' '.join(route)} {read} {written}\n" for route, (read, written) in self._waiting.items())
        if self._file is not None and lines:
            # The count is no reason to fail a transfer. One write of few bytes: lines of processes do not mix.
            with suppress(OSError), open(self._file, "ab", buffering=0) as opened:
                opened.write(lines.encode())
                self._waiting.clear()


traffic = Traffic()
"""The traffic of this process."""
