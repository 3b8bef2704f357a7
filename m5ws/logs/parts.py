"""Parts of the logs of an attempt in the store: `logs/<run>/<attempt>-<node>-<number>`, each written once.

An attempt that a scheduler started stores them, so that `m5ws logs` prints them on any machine. The intervals grow with
the attempt, from 10 seconds to 5 minutes: a month has some thousand parts of a node.
"""

import logging
import time
from collections.abc import Iterable
from pathlib import Path

from m5ws.errors import M5Error
from m5ws.logs.log_lines import LogReader
from m5ws.records.log import LOGS, LogPart
from m5ws.repository import bindings, concurrency
from m5ws.repository.repository import Repository

_LAUNCHER = "launcher"
_SHORTEST_S, _LONGEST_S = 10.0, 300.0
_SHARE = 20
"""The interval is this share of the age of the attempt."""
_MOST_LINES = 2_000
_log = logging.getLogger(__name__)


def find(folder: Path) -> dict[str, Path]:
    """Return the logs in a folder by their names: ranks in order, then the launcher."""
    paths = (*folder.glob("rank-*.log"), *folder.glob(f"{_LAUNCHER}.log"))
    names = {path.stem.removeprefix("rank-"): path for path in paths}
    return {name: names[name] for name in sorted(names, key=_place)}


def choose(found: Iterable[str], rank: str | None) -> list[str]:
    """Return the names of the logs to print: the rank's, else the logs of all ranks in order, else the launcher's."""
    ordered = sorted(found, key=_place)
    if rank is not None:
        return [name for name in ordered if name == rank]
    return [name for name in ordered if name != _LAUNCHER] or ordered


def _place(name: str) -> tuple[bool, str]:
    return not name.isdigit(), name.zfill(8)


def load(repo: Repository, run: str, attempt: int, known: set[str]) -> list[LogPart]:
    """Return the parts of an attempt that are not `known`, oldest first, and make them known.

    Raises CorruptObject, Misplaced.
    """
    names = [name for name in repo.store.names(f"{LOGS}{run}/") if name.partition("-")[0] == f"{attempt:04d}"]
    new = [name for name in sorted(names) if name not in known]
    parts = concurrency.for_each(lambda name: bindings.record(repo.store, f"{LOGS}{run}/{name}", LogPart), new)
    found = sorted(parts, key=lambda part: part.time_s)
    known.update(new)
    return found


class LogParts:
    """The logs of one node in the store. An error of the store delays a part, and never fails an attempt."""

    def __init__(self, repo: Repository, run: str, attempt: int, node: int, folder: Path) -> None:
        self._repo, self._folder = repo, folder
        self._empty = LogPart(run=run, attempt=attempt, node=node, time_s=0.0, lines={})
        self._readers: dict[str, LogReader] = {}
        self._waiting: dict[str, list[str]] = {}
        self._number = 0
        self._began_s = time.monotonic()
        self._due_s = self._began_s + _SHORTEST_S

    def store(self, *, last: bool = False) -> None:
        """Store new lines if a part is due, or the `last` part."""
        if not last and time.monotonic() < self._due_s:
            return
        for name, path in find(self._folder).items():
            reader = self._readers.setdefault(name, LogReader(path))
            self._waiting.setdefault(name, []).extend(reader.read(last=last))
        try:
            self._publish()
        except (M5Error, OSError) as error:
            _log.warning("the logs of run %s are stored later: %s", self._empty.run, error)
        now_s = time.monotonic()
        self._due_s = now_s + min(_LONGEST_S, max(_SHORTEST_S, (now_s - self._began_s) / _SHARE))

    def _publish(self) -> None:
        lines = {name: _shortened(new) for name, new in self._waiting.items() if new}
        if not lines:
            return
        own = self._empty
        key = f"{LOGS}{own.run}/{own.attempt:04d}-{own.node}-{self._number:06d}"
        part = LogPart(run=own.run, attempt=own.attempt, node=own.node, time_s=self._repo.store.now(), lines=lines)
        bindings.create(self._repo.store, key, part)
        self._number += 1
        self._waiting.clear()


def _shortened(lines: list[str]) -> tuple[str, ...]:
    """Return the first and last lines of a part that has too many."""
    if len(lines) <= _MOST_LINES:
        return tuple(lines)
    half = _MOST_LINES // 2
    return (*lines[:half], f"[{len(lines) - 2 * half:,} lines are only on the node]", *lines[-half:])
