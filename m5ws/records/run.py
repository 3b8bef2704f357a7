"""Records of runs: launch, parent, segment, sweep."""

from typing import Literal

from m5ws.records.base import CheckpointName, Count, Digest, Record, RunId, SealedRecord

Trainer = Literal["torchrun", "deepspeed", "python"]
"""Program with which m5ws starts a script: torchrun; torchrun, with DeepSpeed's operators built first; or Python alone,
one process without torchrun's variables."""

Starter = Literal["torchrun", "deepspeed", "python", "accelerate", "composer", "command"]
"""Program that starts the processes of a run: a trainer, the launcher in the command, or `command` for any other
program.
"""


class LaunchSpec(Record, frozen=True, kw_only=True):
    """Launch settings of a run. `diff` and `reproduce` compare the settings that can change bits.

    `command` is the command as typed, and `directory` the folder of the snapshot in which it starts. `nproc` is None if
    the command's own launcher chooses the number of processes.
    `observe`: the steps of a script without a session are observed. `without`: paths of files and datasets whose
    samples `m5ws.data` leaves out.
    """

    command: tuple[str, ...]
    directory: str = "."
    trainer: Starter = "python"
    nproc: int | None = 1
    seed: int | None = None
    environment: dict[str, str] = {}
    checkpoint_every: int | None = None
    checkpoint_minutes: float | None = None
    fingerprint_every: int | None = None
    outputs: tuple[str, ...] = ()
    observe: bool = False
    without: tuple[str, ...] = ()

    @property
    def processes(self) -> str:
        """The program that starts the processes, and their number if m5ws chose it."""
        if self.nproc is None:
            return f"{self.trainer}, as typed"
        return f"{self.trainer}, {self.nproc} process{'es' if self.nproc != 1 else ''}"


class Parent(Record, frozen=True, kw_only=True):
    """The checkpoint that a fork starts from: its run, name and step, and the digest of its record.

    `settings` is the source of the optimizer's and the schedule's settings: the checkpoint, or the script if it was
    changed since. `restart` names the parts that start from the beginning and are not restored. `kept`: the run is
    removed, and its machine had kept the checkpoint, which the fork's record keeps from then on.
    """

    run: RunId
    checkpoint: CheckpointName
    step: Count
    digest: Digest
    settings: Literal["checkpoint", "script"] = "checkpoint"
    restart: tuple[Literal["data", "schedule", "generators"], ...] = ()
    kept: bool = False

    @property
    def name(self) -> str:
        """The checkpoint as RUN@NAME, the form of the command line."""
        return f"{self.run}@{self.checkpoint}"


class Segment(Record, frozen=True, kw_only=True):
    """Steps of a run, after `first` up to `last`, for a replay of this part alone.

    The replay starts from `checkpoint`, whose record is `digest`. It is the run's own after step `first`, or one of a
    traced replay of the run. Without a checkpoint the replay starts as the run did.
    """

    first: Count
    last: Count
    checkpoint: CheckpointName | None = None
    digest: Digest | None = None

    def __str__(self) -> str:
        return f"steps {self.first + 1}-{self.last}"


class Axis(Record, frozen=True, kw_only=True):
    """A key of a sweep, as of `--set`, and its values as text."""

    key: str
    values: tuple[str, ...]


class Sweep(Record, frozen=True, kw_only=True):
    """The sweep of a run. Each run of a sweep contains the whole grid, so any run describes the sweep.

    The runs are the combinations of the values of `axes`, applied to `snapshot` and the launch. The values of the last
    axis change first. `position` is the place of the run in this order, from 0. `name` is the name of the sweep.
    """

    id: RunId
    snapshot: Digest
    axes: tuple[Axis, ...]
    position: Count = 0
    name: str | None = None


class Run(SealedRecord, tag="run/1", frozen=True, kw_only=True):
    """One intent to train. `reproduces` names the run that this one repeats, in whole or a `segment` of it.

    `parent` is the checkpoint that a fork starts from, `sweep` the grid that the run is a part of. `user` started the
    run on `host`; both are None if [run] record_user is false. `created_s` is the time by the clock of that host.
    """

    id: RunId
    snapshot: Digest
    spec: LaunchSpec
    purpose: Literal["train", "reproduce"] = "train"
    reproduces: RunId | None = None
    segment: Segment | None = None
    parent: Parent | None = None
    name: str | None = None
    created_s: float = 0.0
    sweep: Sweep | None = None
    user: str | None = None
    host: str | None = None

    @property
    def begin(self) -> int:
        """The step after which the run starts: `first` of a segment, the parent's step of a fork, else 0."""
        if self.segment is not None:
            return self.segment.first
        return self.parent.step if self.parent is not None else 0
