"""Records of runs: launch, parent, segment."""

from typing import Literal

from m5ws.records.base import CheckpointName, Count, Digest, Record, RunId, Sealed

Trainer = Literal["torchrun", "deepspeed", "python"]
"""What starts the script: torchrun, for FSDP, DDP and one process; the same with DeepSpeed's operators built first;
or Python alone, for a script that takes torchrun's variables for a sign of GPUs."""


class LaunchSpec(Record, frozen=True, kw_only=True):
    """How a run is started: what of it can change bits is compared by `diff` and `reproduce`."""

    command: tuple[str, ...]
    trainer: Trainer = "torchrun"
    nproc: int = 1
    seed: int | None = None
    environment: dict[str, str] = {}
    checkpoint_every: int | None = None
    checkpoint_minutes: float | None = None
    fingerprint_every: int | None = None
    outputs: tuple[str, ...] = ()


class Parent(Record, frozen=True, kw_only=True):
    """The checkpoint that a fork starts from: whose it is, its name and step, and the digest of its record.

    `settings` says whose the optimizer's and the schedule's settings are: the script's own, where it was changed
    since, or the checkpoint's. `restart` is what begins anew instead of going on from the checkpoint.
    """

    run: RunId
    checkpoint: CheckpointName
    step: Count
    digest: Digest
    settings: Literal["checkpoint", "script"] = "checkpoint"
    restart: tuple[Literal["data", "schedule", "generators"], ...] = ()

    @property
    def name(self) -> str:
        """The checkpoint as people write it."""
        return f"{self.run}@{self.checkpoint}"


class Segment(Record, frozen=True, kw_only=True):
    """Steps of a run, after `first` up to `last`, that a replay does alone.

    It starts from `checkpoint`, whose record is `digest`: the run's own after step `first`, or that of a replay of it
    which is looked into. Without one, from where the run itself began.
    """

    first: Count
    last: Count
    checkpoint: CheckpointName | None = None
    digest: Digest | None = None

    def __str__(self) -> str:
        return f"steps {self.first + 1}-{self.last}"


class Run(Sealed, tag="run/1", frozen=True, kw_only=True):
    """One intent to train. `reproduces` names the run that this one repeats, in whole or a `segment` of it.

    `parent` says where a fork starts.
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

    @property
    def begin(self) -> int:
        """The step that the run starts after: of a replayed segment its first, of a fork its parent's, else 0."""
        if self.segment is not None:
            return self.segment.first
        return self.parent.step if self.parent is not None else 0
