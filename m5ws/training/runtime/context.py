"""What this rank knows about the run it is part of; nothing when the script runs outside `m5ws run`.

`training.rank` sets it before the script starts. The environment is read there alone, so that a process
that the script starts on its own never takes itself for a rank.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from m5ws.records.base import Digest
from m5ws.records.launch import Context
from m5ws.records.ledger import Event, Imported, Notice
from m5ws.repository.ledger.spool import SpoolWriter
from m5ws.repository.repository import Repository
from m5ws.training.runtime.imports import Imports
from m5ws.training.runtime.stop import Stop


@dataclass(frozen=True)
class Active:
    """A rank of an attempt: its orders, its store, and where it writes what it did."""

    context: Context
    repo: Repository
    spool: SpoolWriter
    stop: Stop
    rank: int
    world: int
    facts: Mapping[str, str | None] = field(default_factory=dict)
    imports: Imports = field(default_factory=Imports)

    def emit(self, kind: type[Event], /, **fields: Any) -> Digest:
        """Append an event to this rank's chain, and return the chain's head."""
        return self.spool.append(kind(time_s=time.time(), **fields))

    def notice(self, kind: str, message: str, step: int | None = None) -> None:
        """Append something that a person should see."""
        self.emit(Notice, kind=kind, message=message, step=step, rank=self.rank)

    def note_imports(self) -> None:
        """Append what has been loaded since the last call, if anything."""
        modules, libraries = self.imports.new()
        if modules or libraries:
            self.emit(Imported, rank=self.rank, modules=modules, libraries=libraries)


_active: Active | None = None


def activate(active: Active | None) -> None:
    """Make this process the rank that `active` says, or none again; before the script starts."""
    global _active  # noqa: PLW0603  one process is one rank
    _active = active


def active() -> Active | None:
    """Return this process's part in a run, or None outside one."""
    return _active
