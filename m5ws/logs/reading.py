"""The logs of an attempt, read while they are written: of this machine from its folder, of other nodes from the store.

An attempt on one node, whose logs are on this machine, needs no request to the store.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from m5ws.logs import log_lines, parts
from m5ws.logs.log_lines import LogReader
from m5ws.records.log import StoredLines
from m5ws.repository import concurrency
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository

_END_PARTS = 32
"""The newest parts of a node that are read for the end of its logs."""


class LogEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The last lines of a log. `place` is their place in the file `path` in bytes; without a file, in lines."""

    lines: Sequence[str]
    place: int
    path: Path | None = None

    @property
    def lines_before(self) -> int:
        """The number of lines before these lines. Reads the log up to them."""
        return self.place if self.path is None else log_lines.count_lines(self.path, self.place)


class Source:
    """The logs of an attempt. A log that is on this machine is not read from the store."""

    def __init__(self, repo: Repository, run: str, attempt: int, folder: Path) -> None:
        self._attempt, self._folder = (repo, run, attempt), folder
        self._readers: dict[str, LogReader] = {}
        self._next: dict[int, int] = {}
        has_folder = folder.is_dir()
        start = ledger.started(*self._attempt) if has_folder and attempt in ledger.attempts(repo, run) else None
        self._is_local = has_folder and (start is None or start.nodes == 1)
        self.poll_s = 0.25 if self._is_local else 5.0
        """The interval in which new lines are to be read."""

    def read(self, *, last: bool) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield new whole lines with the name of their log; with `last`, an unfinished last line too.

        The lines of one log are in order, some of them at a time.
        """
        found = self._local()
        for name, path in found.items():
            for lines in self._readers.setdefault(name, LogReader(path)).read_all(last=last):
                yield name, lines
        for part in () if self._is_local else self._read_stored():
            yield from ((name, stored.lines) for name, stored in part.items() if name not in found)

    def _read_stored(self) -> Iterator[dict[str, StoredLines]]:
        """Yield the new parts of all nodes. Keys are listed until there is one: a node has 43,000 after a month."""
        if not self._next:
            listed = self._stored()
            self._next = {node: int(keys[-1].rpartition("-")[2]) + 1 for node, keys in listed.items()}
            yield from parts.load(self._attempt[0], [key for keys in listed.values() for key in keys])
            return
        asked = sorted({*self._next, *self._nodes})
        while asked:
            found = concurrency.for_each(self._load_next, asked)
            new = [(node, part) for node, part in zip(asked, found, strict=True) if part is not None]
            yield from (part for _, part in new)
            asked = [node for node, _ in new]
            self._next |= {node: self._next.get(node, 0) + 1 for node in asked}

    @cached_property
    def _nodes(self) -> range:
        start = ledger.started(*self._attempt)
        return range(start.nodes if start is not None else 1)

    def _load_next(self, node: int) -> dict[str, StoredLines] | None:
        return parts.load_next(*self._attempt, node, self._next.get(node, 0))

    def names(self) -> set[str]:
        """Return the names of logs. Of each other node, the first and the newest part are read."""
        found = self._local()
        ends = [key for keys in self._stored().values() for key in {keys[0], keys[-1]}]
        return set(found).union(*parts.load(self._attempt[0], ends))

    def ends(self, most_lines: int) -> dict[str, LogEnd]:
        """Return the last lines of each log. Secrets in logs of this machine are not masked.

        Of each other node, the newest parts are read.
        """
        ends = {}
        for name, path in self._local().items():
            place, lines = log_lines.read_end(path, most_lines)
            if lines:
                ends[name] = LogEnd(lines=lines, place=place, path=path)
        stored: dict[str, LogEnd] = {}
        newest = [key for keys in self._stored().values() for key in keys[-_END_PARTS:]]
        for part in parts.load(self._attempt[0], newest):
            for name, new in part.items():
                lines = [*(stored[name].lines if name in stored else ()), *new.lines][-most_lines:]
                stored[name] = LogEnd(lines=lines, place=new.first + len(new.lines) - len(lines))
        return stored | ends

    def _local(self) -> dict[str, Path]:
        """Return the logs on this machine by name."""
        return parts.find(self._folder)

    def _stored(self) -> dict[int, list[str]]:
        """Return the keys of parts by node, each in order; none if all logs are on this machine."""
        return {} if self._is_local else parts.keys(*self._attempt)
