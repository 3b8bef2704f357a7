"""Copies of the output files of a script without a session, made while it runs."""

import math
import time
from collections.abc import Callable
from pathlib import Path

from m5ws.errors import M5Error
from m5ws.records.run import Run
from m5ws.repository import outputs
from m5ws.repository.files.index import Index
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.writer import FileChanged
from m5ws.repository.repository import Repository
from m5ws.runs.outputs import saved_outputs

_TRIES = 3
_FIRST_WAIT_S, _LAST_WAIT_S = 1.0, 60.0
"""The time between failed copies doubles from the one to the other."""


class OutputCopier:
    """Copies output files of the directory `work` to the store, if they changed.

    It does so every `minutes`, if given, and when a rank has made the file `request`. It keeps an index in the file
    `index`, so that each file is read once.
    """

    def __init__(
        self,
        repo: Repository,
        run: Run,
        attempt: int,
        minutes: float | None,
        work: Path,
        request: Path,
        index: Path,
        files: Callable[[], list[SourceFile]],
    ) -> None:
        self._repo, self._run, self._attempt, self._work, self._files = repo, run, attempt, work, files
        self._request, self._index = request, index
        self._interval_s = 60 * minutes if minutes is not None else math.inf
        self._copied_s = time.monotonic()
        self._content: str | None = None
        self._number = 0
        self._wait_s = 0.0
        self._is_requested = False

    def copy(self) -> str | None:
        """Copy the files if it is time, or requested. Return the error, or None."""
        waited_s = time.monotonic() - self._copied_s
        self._is_requested = self._is_requested or self._request.exists()
        is_time = waited_s >= self._interval_s or (self._is_requested and waited_s >= self._wait_s)
        if self._run.purpose != "train" or not is_time:
            return None
        try:
            # Before the files are listed, so that a request for a later one stays.
            self._request.unlink(missing_ok=True)
            self._store()
            self._wait_s, self._is_requested = 0.0, False
        except (M5Error, OSError) as error:
            self._wait_s = min(max(_FIRST_WAIT_S, 2 * self._wait_s), _LAST_WAIT_S)
            return str(error)
        finally:
            self._copied_s = time.monotonic()
        return None

    def _store(self) -> None:
        """Store the files, listed again if the script removed or wrote one of them meanwhile."""
        name = outputs.name(self._attempt, f"{self._number:06d}")
        for left in reversed(range(_TRIES)):
            # Also a try that fails leaves the index, so that the next one reads only the rest.
            with Index(self._index) as index:
                try:
                    copy = saved_outputs.record(self._repo, self._run, name, self._files(), self._work, index)
                    break
                except (FileChanged, FileNotFoundError) as error:
                    failure = error
            if not left:
                raise failure
        if copy is not None and copy.content != self._content:
            # If the store's answer was lost, this copy may have its name already. The next one needs another.
            self._number += 1
            outputs.publish(self._repo, copy)
            self._content = copy.content
