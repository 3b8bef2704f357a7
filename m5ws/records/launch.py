"""Records of a launch: the command that the launcher runs, and the context of its ranks.

They stay on the machine, and are not stored.
"""

import os
import signal
from typing import Annotated

import msgspec

from m5ws.records.base import Count, Digest, Record
from m5ws.records.environment import Determinism
from m5ws.records.run import LaunchSpec, Parent

OBSERVED = "observed"
"""Name of the file, in the folder of spools, with the environment that the first rank observed."""

ADMITTED = "admitted"
"""Name of the file, in the folder of spools, with the admission of the ranks."""

UNSAVED = "unsaved"
"""Name of the store, in an attempt's directory, for a last checkpoint that could not be saved in the run's store."""

FLIGHT = "flight-"
"""Begin of the names, in the folder of spools, of a rank's pipe and file for torch's flight recorder."""

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals that schedulers send some time before the end of a job."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *WARNINGS)
"""Signals that stop a run: Ctrl-C, and the signals that schedulers send before or at the end of a job."""


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a run, without a SIGHUP that this process ignores because of nohup(1)."""
    return [number for number in STOP_SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


def open_log(path: str | os.PathLike[str], flags: int = os.O_WRONLY | os.O_CREAT | os.O_APPEND) -> int:
    """Return a descriptor of a log that only the user may read, because scripts print secrets. Usable as `opener`."""
    return os.open(path, flags, 0o600)


class Place(Record, frozen=True, kw_only=True):
    """The place of a machine among the `nodes` of an attempt. Node 0 leads, and listens on `master`, a name or address.

    `port` and the port after it are free on `master`. `job` names the job of the scheduler, and how often it was
    started: the agents of one attempt have the same `job`.
    """

    node: Count = 0
    nodes: Count = 1
    master: str = "127.0.0.1"
    port: Count = 0
    job: str | None = None


ALONE = Place()
"""The place of the only machine of an attempt."""


class Saving(Record, frozen=True, kw_only=True):
    """Settings for saving checkpoints; they cannot change bits.

    `asynchronous`: the training waits only for the copy of its state. `failures`: number of consecutive failed
    checkpoints that ends the training; None: never. `deadline_s`: time for the last save after a request to stop.
    `local`: a folder on the local disk of each node, with variables of the node, where a copy of each checkpoint is
    written before its upload.
    """

    asynchronous: bool = True
    failures: Annotated[int, msgspec.Meta(ge=1)] | None = None
    deadline_s: Annotated[float, msgspec.Meta(gt=0)] = 110.0
    local: Annotated[str, msgspec.Meta(pattern=r"\A[/$]")] | None = None


class Trace(Record, frozen=True, kw_only=True):
    """The steps to trace, from `first` to `last`, with at most `most` entries in all."""

    first: Count
    last: Count
    most: Count = 50_000


class LocalInstall(Record, frozen=True, kw_only=True):
    """A distribution that is installed from files of this machine outside the workspace: `url`, and `kind` of Origin.

    If it is not `allowed`, importing it fails the run.
    """

    name: str
    kind: str
    url: str
    allowed: bool = False


class Admission(Record, tag="admission/1", frozen=True, kw_only=True):
    """Permission to begin the script. `local_installs` has code that no snapshot contains."""

    local_installs: tuple[LocalInstall, ...] = ()


class Observing(Record, frozen=True, kw_only=True):
    """Orders for the observation of an environment. `root` is the workspace; code outside it becomes a fact.

    `copy` is a copy of the workspace from which distributions were installed. `variables` are recorded in addition to
    the built-in variables. `rebuilt` describes a rebuilt environment.
    """

    root: str = ""
    copy: str | None = None
    variables: tuple[str, ...] = ()
    rebuilt: str | None = None


class Access(Record, frozen=True, kw_only=True):
    """Places that the processes of an attempt may only `read`, or also `write`.

    A place is the absolute path of a folder with all below it, or of a file.
    """

    read: tuple[str, ...]
    write: tuple[str, ...]


class Context(Record, tag="context/1", frozen=True, kw_only=True):
    """Context of a rank, in the file that M5WS_CONTEXT names. It stays on the machine.

    `work_dir` is empty in a plan, and `observing` has no root. `resume` is the digest of the checkpoint to restore,
    `parent` its run if that is another run. `saving` has the settings for new checkpoints, `trace` the steps to trace.
    A replay makes a checkpoint after each step in `checkpoint_at`, and fingerprints after each in `fingerprint_at`, as
    its original did, and never by the clock. The attempt ends after step `until`, if given. Without `goes_on` no later
    attempt follows, so an early end makes no checkpoint. The ranks of a script without a session are killed after step
    `killed_after`, if given, as by a crash. `copies` is the directory of the cache, of at most `copies_bytes`, and
    `references` the directory with copies of references. `files` is the directory of the cache for remote datasets, of
    at most `files_bytes`. `local` is the folder of this node with copies of checkpoints. `remotes` are the folders in
    which datasets stay. `image`: the image in which the ranks run. `access`: None if nothing is refused. `supervisor`:
    the process that may read the stacks of the ranks.
    """

    store: str
    run: str
    snapshot: Digest
    attempt: int
    spec: LaunchSpec
    determinism: Determinism
    work_dir: str = ""
    spool_dir: str
    log_dir: str
    output_dir: str
    author_dir: str
    resume: Digest | None = None
    parent: Parent | None = None
    saving: Saving = Saving()
    checkpoint_at: tuple[int, ...] | None = None
    fingerprint_at: tuple[int, ...] | None = None
    until: int | None = None
    goes_on: bool = True
    killed_after: int | None = None
    trace: Trace | None = None
    copies: str = ""
    references: str = ""
    copies_bytes: int = 0
    files: str = ""
    files_bytes: int = 0
    local: str = ""
    remotes: tuple[str, ...] = ()
    observing: Observing = Observing()
    image: str | None = None
    access: Access | None = None
    supervisor: int | None = None


class LaunchRequest(Record, tag="launch/1", frozen=True, kw_only=True):
    """A rendered launch: the exact command, its directory, and the environment variables that are added.

    `unset` names variables that are not inherited. `prepare` is a command that runs to its end before (for example to
    build a compiled operator once, not once a rank). `mount`: a folder, and the path of an empty folder at which all
    these processes see the first folder. `processes`: the folder in which ranks name themselves. If the caller dies,
    the processes have `patience_s` to end; without end if it is 0. `image`: the image by digest in which the processes
    run. They see `folders` of the host there, at the same paths. `access`: as in `Context`, for `argv` alone.
    """

    argv: tuple[str, ...]
    cwd: str
    environment: dict[str, str]
    log: str
    prepare: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    mount: tuple[str, str] | None = None
    processes: str = ""
    patience_s: int = 0
    image: str | None = None
    folders: tuple[str, ...] = ()
    access: Access | None = None
