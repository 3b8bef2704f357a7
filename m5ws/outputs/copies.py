"""Copies of the output files of an attempt, made while it runs.

Each copy is of one moment: no file changed while the changed files were read. Large files are uploaded before that.
"""

import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from m5ws.errors import M5Error
from m5ws.filesystem import stamp
from m5ws.outputs import collect, storing
from m5ws.outputs.collect import Outputs
from m5ws.records.run import Run
from m5ws.repository.files.index import Index, is_settled
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.writer import FileChanged
from m5ws.repository.references import outputs as stored_outputs
from m5ws.repository.repository import Repository

if TYPE_CHECKING:
    from m5ws.records.outputs import OutputFiles

_FIRST_WAIT_S, _LAST_WAIT_S = 1.0, 60.0
"""The time between failed copies doubles from the first to the last."""


class OutputCopier:
    """Copies the output files that `collect` returns to the store every `minutes`, if they changed.

    It keeps an index in the file `index`, so that each file is uploaded once.
    """

    def __init__(
        self,
        repo: Repository,
        run: Run,
        attempt: int,
        minutes: float | None,
        index: Path,
        collect: Callable[[], Outputs],
        node: int = 0,
    ) -> None:
        self._repo, self._run, self._attempt, self._index, self._collect = repo, run, attempt, index, collect
        self._interval_s = 60 * minutes if minutes is not None and run.purpose == "train" else math.inf
        self._began_s, self._node = time.monotonic(), node
        self._due_s = self._began_s + self._interval_s
        self._next_s, self._wait_s = self._due_s, 0.0
        self._newest: OutputFiles | None = None
        self._number = 0

    def copy(self) -> str | None:
        """Copy the files if it is time. Return the error if no copy could be made for an interval, or None."""
        now_s, problem = time.monotonic(), None
        if now_s < self._next_s:
            return None
        try:
            self._store()
            self._due_s, self._wait_s = time.monotonic() + self._interval_s, 0.0
            self._next_s = self._due_s
        except (M5Error, OSError) as error:
            self._wait_s = min(max(_FIRST_WAIT_S, 2 * self._wait_s), _LAST_WAIT_S)
            self._next_s = time.monotonic() + min(self._wait_s, self._interval_s)
            if now_s - self._due_s >= self._interval_s:
                problem, self._due_s = str(error), now_s
        return problem

    def _store(self) -> None:
        """Store a copy. Raises FileChanged, and OSError for a removed file; then the next try reads only the rest."""
        # Copies of all nodes with one number are of about one time.
        self._number = max(self._number, int((time.monotonic() - self._began_s) // (self._interval_s or math.inf)))
        name = stored_outputs.name(self._attempt, f"{self._number:06d}", self._node)
        with Index(self._index) as index:
            # Not yet of one moment.
            storing.content(self._repo, self._run, self._collect().files, index)
        with tempfile.TemporaryDirectory(prefix="copy-", dir=self._index.parent) as folder, Index(self._index) as index:
            moment = self._hold(Path(folder), index)
            copy = storing.record(self._repo, self._run, name, moment, index)
        if copy is None or (self._newest and msgspec.structs.replace(self._newest, moment=copy.moment) == copy):
            return
        # If the store's answer was lost, this copy may have its name already. The next copy needs another name.
        self._number += 1
        stored_outputs.publish(self._repo, copy)
        self._newest = copy

    def _hold(self, folder: Path, index: Index) -> Outputs:
        """Return the outputs at this moment. Files that are not in the index are copied to `folder`."""
        began_ns, before = time.time_ns(), self._collect()
        files = list(before.files)
        for number, file in enumerate(before.files):
            location, seen = os.fsencode(file.location), stamp(collect.status(file))
            if index.file(location, seen) is None:
                copy = shutil.copy2(file.location, folder / str(number))
                files[number] = SourceFile(path=file.path, location=copy)
        after, stamps = self._collect(), before.stamps()
        is_settled_before = all(is_settled(seen, began_ns) for seen in stamps.values())
        if not is_settled_before or after.stamps() != stamps or after.links != before.links:
            raise FileChanged("files were written while they were copied")
        return msgspec.structs.replace(before, files=tuple(files))
