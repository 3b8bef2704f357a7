"""The run, attempt and rank of this process; None when the script runs outside `m5ws run`.

`training.rank` sets it before the script starts. Only that module reads the environment, so that a process that the
script starts on its own never acts as a rank.
"""

import os
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from m5ws.records.base import Digest
from m5ws.records.launch import Context
from m5ws.records.ledger import Event, Imported, Notice, NoticeKind, Setting
from m5ws.repository.ledger.spool import SpoolWriter
from m5ws.repository.repository import Repository
from m5ws.training.runtime import isolation
from m5ws.training.runtime.imports import Imports
from m5ws.training.runtime.stop import StopRequest

SAVE_THREAD = "m5ws-save"
"""Name of the thread that saves checkpoints in parallel to the training."""


@dataclass(frozen=True)
class ActiveRank:
    """A rank of an attempt: its context record, its store, and the spool of its events."""

    context: Context
    repo: Repository
    spool: SpoolWriter
    stop: StopRequest
    rank: int
    world: int
    facts: Mapping[str, str | None] = field(default_factory=dict)
    imports: Imports = field(default_factory=Imports)
    _noticed: set[str] = field(default_factory=set)

    def emit(self, kind: type[Event], /, **fields: Any) -> Digest:
        """Append an event to this rank's chain, and return the chain's head."""
        return self.spool.append(kind(time_s=time.time(), **fields))

    def notice(self, kind: NoticeKind, message: str, step: int | None = None) -> None:
        """Append a message for people."""
        self.emit(Notice, kind=kind, message=message, step=step, rank=self.rank)

    def notice_once(self, topic: str, message: str, step: int | None = None) -> None:
        """Append a notice about a limit, unless this rank has one about the topic."""
        if topic not in self._noticed:
            self._noticed.add(topic)
            self.notice("limit", message, step)

    def note_imports(self) -> None:
        """Append the imports since the last call, if there are any, and the imports that no snapshot contains."""
        modules, libraries = self.imports.new()
        if modules or libraries:
            self.emit(Imported, rank=self.rank, modules=modules, libraries=libraries)
        for limit in isolation.take_limits():
            self.notice("limit", limit)


class Threads:
    """Records changes of torch's number of threads, by which sums are split, as steps go on."""

    def __init__(self, active: ActiveRank) -> None:
        self._active = active
        self._known = active.facts.get("threads")

    def record(self, step: int) -> None:
        """Append the number of threads if it has changed since the last call."""
        now = str(torch.get_num_threads())
        if self._known is not None and now != self._known:
            self._active.emit(Setting, rank=self._active.rank, step=step, name="threads", value=now)
            self._known = now


_active: ActiveRank | None = None


def activate(active: ActiveRank | None) -> None:
    """Make this process the rank of `active`, or no rank; called before the script starts."""
    global _active  # noqa: PLW0603  one process is one rank
    _active = active


def active() -> ActiveRank | None:
    """Return this process's part in a run, or None outside one."""
    return _active


def warn_unrecorded() -> None:
    """Print that a session in this process is not recorded, if a process of a run started it and it is no rank."""
    if _active is None and "M5WS_CONTEXT" in os.environ:
        sys.stderr.write(
            "m5ws: this process is not a rank of the run, so m5ws.session records nothing. Give m5ws run the command "
            f"that starts it: m5ws run -- python {shlex.join(sys.argv)}\n"
        )
