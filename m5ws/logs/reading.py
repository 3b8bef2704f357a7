"""The logs of an attempt, read while they are written: from the folder of this machine, or else from the store."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from m5ws.logs import parts
from m5ws.logs.log_lines import LogReader
from m5ws.repository.repository import Repository

Lines = list[tuple[str, Sequence[str]]]
"""Lines of logs, each with the name of its log: a rank, or `launcher`."""


class Source(Protocol):
    """The logs of an attempt. New lines are read each `poll_s` seconds."""

    poll_s: float

    def read(self, *, last: bool) -> Lines:
        """Return new whole lines; with `last`, an unfinished last line too."""


class _Folder:
    """`Source` on this machine. An empty log has no lines."""

    poll_s = 0.25

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: dict[str, LogReader] = {}

    def read(self, *, last: bool) -> Lines:
        logs = parts.find(self._folder).items()
        return [(name, self._readers.setdefault(name, LogReader(path)).read(last=last)) for name, path in logs]


class _Store:
    """`Source` of a run on a cluster."""

    poll_s = 5.0

    def __init__(self, repo: Repository, run: str, attempt: int) -> None:
        self._attempt = (repo, run, attempt)
        self._known: set[str] = set()

    def read(self, *, last: bool) -> Lines:
        return [pair for part in parts.load(*self._attempt, self._known) for pair in part.lines.items()]


def source_of(repo: Repository, run: str, attempt: int, folder: Path | None) -> Source:
    """Return the logs of an attempt, from its folder on this machine if there is one, or else from the store."""
    return _Folder(folder) if folder is not None and folder.is_dir() else _Store(repo, run, attempt)
