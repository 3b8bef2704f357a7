"""Parts of the logs of an attempt in the store: `logs/<run>/<attempt>-<node>-<number>`, each written once.

Each node stores new lines while the attempt runs, so that `m5ws logs` prints them on any machine. The intervals grow
with the attempt, from 10 seconds to a minute. The log on the node is the buffer: a part that the store does not take
is tried again, and nothing more is read until the store has it.
"""

import logging
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from m5ws.errors import CorruptObject, NotFound, ObjectExists
from m5ws.logs.log_lines import LONG_CHARACTERS, LogReader
from m5ws.records import codec
from m5ws.records.log import LOGS, LogPart, StoredLines
from m5ws.repository import bindings, concurrency
from m5ws.repository.repository import Repository

LAUNCHER = "launcher"
_SHORTEST_S, _LONGEST_S = 10.0, 60.0
_SHARE = 20
"""The interval is this share of the age of the attempt."""
_MOST_LINES = 2_000
_TEXT_BYTES = 4 * 2**20
"""Upper bound of the text of a part, for all its logs together."""
_LEAST_BYTES = 64 * 2**10
_KEY = re.compile(r"/\d+-(\d+)-\d+$")
_MEMORY_BYTES = 16 * 2**20
_log = logging.getLogger(__name__)
_decoder = msgspec.msgpack.Decoder(dict[str, StoredLines])


def find(folder: Path) -> dict[str, Path]:
    """Return the logs in a folder by their names: ranks in order, then launchers."""
    paths = (*folder.glob("rank-*.log"), *folder.glob(f"{LAUNCHER}*.log"))
    names = {path.stem.removeprefix("rank-"): path for path in paths}
    return {name: names[name] for name in sorted(names, key=place)}


def choose(found: Iterable[str], rank: str | None) -> list[str]:
    """Return the names of the logs to print: the rank's, else the logs of all ranks in order, else the launchers'."""
    ordered = sorted(found, key=place)
    if rank is not None:
        return [name for name in ordered if name == rank]
    return [name for name in ordered if not name.startswith(LAUNCHER)] or ordered


def place(name: str) -> tuple[bool, str]:
    """Return the place of a log among all logs: ranks in order, then launchers."""
    return not name.isdigit(), name.zfill(16)


def key(run: str, attempt: int, node: int, number: int) -> str:
    """Return the key of a part. The parts of a node are numbered from 0, without a gap."""
    return f"{LOGS}{run}/{attempt:04d}-{node}-{number:06d}"


def keys(repo: Repository, run: str, attempt: int) -> dict[int, list[str]]:
    """Return the keys of the parts of an attempt by node, each in order."""
    found: dict[int, list[str]] = {}
    for stat in repo.store.list(f"{LOGS}{run}/{attempt:04d}-"):
        if (match := _KEY.search(stat.key)) is not None:
            found.setdefault(int(match[1]), []).append(stat.key)
    return dict(sorted(found.items()))


def load(repo: Repository, wanted: Iterable[str]) -> Iterator[dict[str, StoredLines]]:
    """Yield the lines in the parts under these keys, by the names of logs. Raises CorruptObject, Misplaced, NotFound.

    Some parts are in memory at once, however many there are.
    """
    return concurrency.bounded_map((_MEMORY_BYTES, partial(_lines, repo, key)) for key in wanted)


def load_next(repo: Repository, run: str, attempt: int, node: int, number: int) -> dict[str, StoredLines] | None:
    """Return the lines in one part of a node; None if the node has not stored it. Raises as `load`."""
    try:
        return _lines(repo, key(run, attempt, node, number))
    except NotFound:
        return None


def _lines(repo: Repository, where: str) -> dict[str, StoredLines]:
    part = bindings.record(repo.store, where, LogPart)
    try:
        return _decoder.decode(codec.expand(part.logs, part.size_bytes, f"the lines of {where}"))
    except codec.UNREADABLE as error:
        raise CorruptObject(f"the lines of {where} cannot be decoded: {error}") from error


class LogParts:
    """The logs of one node in the store. An error delays a part, and never fails an attempt."""

    def __init__(self, repo: Repository, run: str, attempt: int, node: int, folder: Path) -> None:
        self._repo, self._folder = repo, folder
        self._run, self._attempt, self._node = run, attempt, node
        self._readers: dict[str, LogReader] = {}
        self._written: dict[str, int] = {}
        self._waiting: LogPart | None = None
        self._number = 0
        self._began_s = time.monotonic()
        self._due_s = self._began_s + _SHORTEST_S

    def store(self, *, last: bool = False) -> None:
        """Store new lines if a part is due, or the `last` part."""
        if not last and time.monotonic() < self._due_s:
            return
        try:
            self._publish()
            self._waiting = self._next(last=last)
            self._publish()
        except Exception as error:  # noqa: BLE001  # whatever it is, the training goes on
            when = "only on this machine" if last else "stored later"
            _log.warning("new lines in the logs of run %s are %s: %s", self._run, when, error)
        now_s = time.monotonic()
        self._due_s = now_s + min(_LONGEST_S, max(_SHORTEST_S, (now_s - self._began_s) / _SHARE))

    def _publish(self) -> None:
        """Store the part that waits. Only this node writes its key, so an existing part is this part."""
        if self._waiting is not None:
            where = key(self._run, self._attempt, self._node, self._number)
            with suppress(ObjectExists):
                bindings.create(self._repo.store, where, self._waiting)
            self._number += 1
            self._waiting = None

    def _next(self, *, last: bool) -> LogPart | None:
        """Return a part of the new lines of all logs; None without one."""
        found = find(self._folder)
        most_bytes = max(_LEAST_BYTES, _TEXT_BYTES // max(1, len(found)))
        logs: dict[str, StoredLines] = {}
        for name, path in found.items():
            reader = self._readers.setdefault(name, LogReader(path))
            if lines := _shortened(reader.read(last=last, most_bytes=most_bytes)):
                logs[name] = StoredLines(first=self._written.get(name, 0), lines=lines)
                self._written[name] = logs[name].first + len(lines)
        if not logs:
            return None
        data = msgspec.msgpack.encode(logs)
        return LogPart(
            run=self._run,
            attempt=self._attempt,
            node=self._node,
            time_s=time.time(),
            size_bytes=len(data),
            logs=codec.compress(data),
        )


def _shortened(lines: list[str]) -> tuple[str, ...]:
    """Return the first and last lines of a part that has too many, each up to the longest line."""
    if len(lines) > _MOST_LINES:
        half = _MOST_LINES // 2
        lines = [*lines[:half], f"[{len(lines) - 2 * half:,} lines are only on the node]", *lines[-half:]]
    cut = " [{:,} characters are only on the node]"
    return tuple(
        line if len(line) <= LONG_CHARACTERS else line[:LONG_CHARACTERS] + cut.format(len(line) - LONG_CHARACTERS)
        for line in lines
    )
