"""The record of the files that the processes of a node read: their notes, with sizes and digests, as events.

The supervisor computes the digests beside the script, soon after the first read. After a kill of a rank nothing is
missing. After a kill of the supervisor, files of its last moments and all folders are missing.
"""

import logging
import time
from collections.abc import Iterator
from pathlib import Path, PurePath

import msgspec

from m5ws import secret_scan
from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.environment import reads
from m5ws.errors import M5Error
from m5ws.launch import read_notes
from m5ws.records.ledger import Notify, Reads
from m5ws.records.reads import HOST, MORE, WRITTEN, ReadPath
from m5ws.repository.ledger.spool import SpoolWriter
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.wording import refusals
from m5ws.wording.reads import describe

_BUDGET_S = 1.0
"""The longest time of one call while the script runs: the ledger is delivered in the same thread."""
_LAST_S = 20.0
"""The longest time of the last call. Files that are left then have no digest."""
_log = logging.getLogger(__name__)


class ReadFiles:
    """Records the notes of one attempt. It is used by one thread at a time."""

    def __init__(self, repo: Repository, plan: AttemptPlan, spool: SpoolWriter, notify: Notify) -> None:
        self._repo, self._plan, self._spool, self._notify = repo, plan, spool, notify
        self._events: list[Reads] = []
        self._notes = read_notes.NoteReader(Path(plan.context.spool_dir) / read_notes.NAME)
        self._waiting: dict[str, None] = {}
        self._known: set[str] = set()
        self._made: set[str] = set()
        self._contents: frozenset[str] | None = None
        self._began_ns = time.time_ns()

    def record(self, *, last: bool = False) -> None:
        """Record new notes; with `last`, all notes, and folders. An error of the system or the store is logged."""
        if self._plan.context.access is not None:  # They are notes of refusals.
            return
        try:
            hosts, more = self._take()
            paths = tuple(self._measured(time.monotonic() + (_LAST_S if last else _BUDGET_S), last=last))
            if paths or hosts or more:
                self._events.append(Reads(time_s=time.time(), paths=paths, hosts=hosts, more=more))
                self._spool.append(self._events[-1])
        except (M5Error, OSError) as error:
            _log.warning("the files that run %s read are not all recorded: %s", self._plan.run.id, error)

    def report(self) -> None:
        """Write notices of refusals, and of the files that no snapshot contains. A verdict has its own list."""
        if self._plan.context.access is not None:
            for message in refusals.describe(self._notes.read()):
                self._notify("refused", secret_scan.masked(message))
        text = describe(reads.join(self._events), self._plan.run.id)
        if text is not None and self._plan.run.purpose == "train":
            self._notify("not-pinned", text)

    def _take(self) -> tuple[tuple[str, ...], bool]:
        """Take in new notes. Return the new hosts, and True if a process has more than its notes."""
        hosts, more = list[str](), False
        for kind, text in self._notes.read():
            if kind == WRITTEN:
                self._made.add(text)
            elif kind == MORE:
                more = True
            elif text not in self._known:
                self._known.add(text)
                if kind == HOST:
                    hosts.append(text)
                elif not self._is_made(text):
                    self._waiting[text] = None
        return tuple(hosts), more

    def _is_made(self, path: str) -> bool:
        """Return True if the run made a file, or a folder around it."""
        real = PurePath(Path(path).resolve())
        return any(str(place) in self._made for place in (real, *real.parents))

    def _measured(self, deadline_s: float, *, last: bool) -> Iterator[ReadPath]:
        """Yield waiting files until the deadline; with `last`, all files and folders.

        A folder in which the run made something is left out: its list is not as the run found it.
        """
        for path in list(self._waiting):
            is_late = time.monotonic() > deadline_s
            is_folder = Path(path).is_dir()
            if (is_late or is_folder) and not last:
                continue
            del self._waiting[path]
            if is_folder and any(PurePath(made).parent == Path(path).resolve() for made in self._made):
                continue
            read = reads.measure(self._repo.objects, path, self._began_ns) if not is_late else ReadPath(path=path)
            if read is not None:
                yield msgspec.structs.replace(read, pinned=self._is_pinned(read))

    def _is_pinned(self, read: ReadPath) -> bool:
        """Return True if the snapshot has a file with this content."""
        if read.kind == "folder" or read.digest is None or read.sampled:
            return False
        if self._contents is None:
            snapshot = snapshots.load(self._repo, self._plan.run.snapshot)
            self._contents = frozenset(entry.digest for entry in snapshots.entries(self._repo, snapshot))
        return read.digest in self._contents
