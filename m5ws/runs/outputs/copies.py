"""Copies of the output files of a script without a session, made while it runs."""

import time
from collections.abc import Callable
from pathlib import Path

from m5ws.errors import M5Error
from m5ws.records.run import Run
from m5ws.repository import outputs
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.repository import Repository
from m5ws.runs.outputs import saved_outputs


class OutputCopier:
    """Copies output files of the directory `work` to the store every `minutes`, if they changed; never if None."""

    def __init__(
        self,
        repo: Repository,
        run: Run,
        attempt: int,
        minutes: float | None,
        work: Path,
        files: Callable[[], list[SourceFile]],
    ) -> None:
        self._repo, self._run, self._attempt, self._work, self._files = repo, run, attempt, work, files
        self._interval_s = 60 * minutes if minutes is not None and run.purpose == "train" else None
        self._copied_s = time.monotonic()
        self._content: str | None = None
        self._number = 0

    def copy(self) -> str | None:
        """Copy the files if it is time. Return the error, or None."""
        if self._interval_s is None or time.monotonic() - self._copied_s < self._interval_s:
            return None
        try:
            name = outputs.name(self._attempt, f"{self._number:06d}")
            copy = saved_outputs.record(self._repo, self._run, name, self._files(), self._work)
            if copy is not None and copy.content != self._content:
                outputs.publish(self._repo, copy)
                self._content, self._number = copy.content, self._number + 1
        except (M5Error, OSError) as error:
            # Such as a file that the script is writing. The next copy has it.
            return str(error)
        finally:
            self._copied_s = time.monotonic()
        return None
