"""What an attempt is launched with: the command that the launcher runs, and what its ranks are told.

Nothing of it is stored: it stays on the machine.
"""

import os

from m5ws.records.base import Count, Digest, Record
from m5ws.records.environment import Determinism
from m5ws.records.run import LaunchSpec, Parent

UNSAVED = "unsaved"
"""The store, in an attempt's directory, with a last checkpoint that the run's own store did not take."""


def open_log(path: str | os.PathLike[str], flags: int = os.O_WRONLY | os.O_CREAT | os.O_APPEND) -> int:
    """Return a descriptor of a log, which nobody else may read: scripts print secrets. Usable as `opener`."""
    return os.open(path, flags, 0o600)


class Saving(Record, frozen=True, kw_only=True):
    """How checkpoints are saved; none of it can change bits.

    `asynchronous`: the training waits for the copy of its state alone. `failures`: how many failed checkpoints in a
    row end the training, None for no number. `deadline_s`: how long a run that is told to stop may take to save.
    """

    asynchronous: bool = True
    failures: int | None = None
    deadline_s: float = 110.0


class Trace(Record, frozen=True, kw_only=True):
    """The steps to look into, from `first` to `last`, writing down at most `most` things in all."""

    first: Count
    last: Count
    most: Count = 50_000


class Context(Record, tag="context/1", frozen=True, kw_only=True):
    """What a rank is told, in the file that M5WS_CONTEXT names. It stays on the machine.

    `resume` is the digest of the checkpoint to go on from, `parent` says whose it is if it is another run's, `saving`
    how others are made, `trace` which steps are looked into; a replay makes one after each step in `checkpoint_at`, as
    its original did, and lets no clock decide. The attempt ends after step `until`, if it is given; one that never
    `goes_on` makes no checkpoint only for ending before its time. `copies` is where copies of what is read are kept, of
    at most `copies_bytes`.
    """

    store: str
    run: str
    snapshot: Digest
    attempt: int
    spec: LaunchSpec
    determinism: Determinism
    work_dir: str
    spool_dir: str
    log_dir: str
    output_dir: str
    author_dir: str
    resume: Digest | None = None
    parent: Parent | None = None
    saving: Saving = Saving()
    checkpoint_at: tuple[int, ...] | None = None
    until: int | None = None
    goes_on: bool = True
    trace: Trace | None = None
    copies: str = ""
    copies_bytes: int = 0


class LaunchRequest(Record, tag="launch/1", frozen=True, kw_only=True):
    """A launch, rendered: exactly what will be executed, where, and with which environment variables added.

    `unset` names variables that are not inherited.
    `prepare` is run to its end before (for example to build a compiled operator once, not once a rank).
    `mount`: a folder, and the path of an empty folder at which all these processes see it.
    """

    argv: tuple[str, ...]
    cwd: str
    environment: dict[str, str]
    log: str
    prepare: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    mount: tuple[str, str] | None = None
