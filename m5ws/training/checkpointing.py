"""Checkpoints of a run: saved whole or not at all, and restored with proof.

Order of a save: the bytes of all ranks, then the content that names them, then the reference. A save that
fails is a notice in the ledger and is tried again at the next one; it never ends the training.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from m5ws import codec
from m5ws.errors import CorruptObject, Fenced, M5Error
from m5ws.events import CheckpointPublished
from m5ws.records import Checkpoint, Content, Digest, Slice
from m5ws.repository import checkpoints
from m5ws.repository.objects import Objects
from m5ws.repository.publishing import Vanished
from m5ws.training import control
from m5ws.training.backend import Backend, Plain, Saved
from m5ws.training.context import Active
from m5ws.training.plain import RestoreError, StateError

_REPEATS = 3

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class State:
    """What a checkpoint holds beside the backend's tensors; plain data, and free of time and run.

    `common` is the same on all ranks (step, fingerprints, scheduler), `rank` is this rank's own (generators,
    position in the data, the script's own state).
    """

    step: int
    fingerprints: dict[str, str]
    common: dict[str, Plain]
    rank: dict[str, Plain]


@dataclass(frozen=True)
class _Written:
    """One rank's report after its part of a save: what went wrong, or where its plain state is."""

    problem: str | None
    state: Slice | None
    head: Digest
    began: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Outcome:
    """What came of a save, the same on all ranks: the checkpoint's digest, or why there is none."""

    published: Digest | None = None
    content: Digest = ""
    problem: str | None = None
    fenced: str | None = None
    vanished: bool = False


def save(active: Active, backend: Backend, group: "ProcessGroup | None", state: State) -> bool:
    """Save and publish a checkpoint; collective. Return whether it is published, the same on all ranks.

    Raises Fenced, on all ranks, if a newer attempt of the run has begun.
    """
    started = time.perf_counter()
    outcome = _save(active, backend, group, state)
    for _ in range(_REPEATS):
        if not outcome.vanished:
            break
        # The training waits here, so that the state is still this one: what gc took away is uploaded again.
        outcome = _save(active, backend, group, state)
    if outcome.fenced is not None:
        raise Fenced(outcome.fenced)
    if active.rank == 0:
        _announce(active, outcome, state.step, time.perf_counter() - started)
    return outcome.published is not None


def _save(active: Active, backend: Backend, group: "ProcessGroup | None", state: State) -> _Outcome:
    """Write all ranks' bytes and publish them; collective, and the outcome is the same on all ranks."""
    objects = active.repo.objects
    saved, problem, mine, began = Saved(), None, None, frozenset[str]()
    try:
        began = objects.begin()
        saved = backend.save(objects, group)
        mine = _put_plain(objects, {"backend": saved.rank, **state.rank})
    except (Fenced, StateError, RestoreError):
        raise
    except (M5Error, OSError) as error:
        problem = f"{type(error).__name__}: {error}"
    written = control.gather(_Written(problem, mine, active.spool.head, began), group)
    problems = {rank: report.problem for rank, report in enumerate(written) if report.problem is not None}
    if problems:
        return _Outcome(problem="; ".join(f"rank {rank}: {problem}" for rank, problem in problems.items()))
    mine_alone = _publish(active, backend, saved, state, written) if active.rank == 0 else None
    return control.broadcast(mine_alone, group)


def _publish(active: Active, backend: Backend, saved: Saved, state: State, written: list[_Written]) -> _Outcome:
    """Publish, on rank 0, what all ranks have written; return what came of it."""
    objects = active.repo.objects
    try:
        common = {"step": state.step, "fingerprints": state.fingerprints, "backend": saved.common, **state.common}
        content = Content(
            format=backend.format,
            world=active.world,
            tensors=saved.tensors,
            blobs=saved.blobs,
            common=_put_plain(objects, common),
            ranks=tuple(report.state for report in written if report.state is not None),
        )
        checkpoint = Checkpoint(
            run=active.context.run,
            snapshot=active.context.snapshot,
            attempt=active.context.attempt,
            step=state.step,
            content=objects.put_record(content),
            ledger={str(rank): report.head for rank, report in enumerate(written)},
        )
        # All ranks' bytes are durable: they have said so. Published from here on.
        began = frozenset.intersection(*(report.began for report in written))
        digest = checkpoints.publish(active.repo, checkpoint, began)
    except Fenced as error:
        return _Outcome(fenced=str(error))
    except Vanished as error:
        return _Outcome(problem=str(error), vanished=True)
    except (M5Error, OSError) as error:
        return _Outcome(problem=f"{type(error).__name__}: {error}")
    return _Outcome(published=digest, content=checkpoint.content)


def _announce(active: Active, outcome: _Outcome, step: int, seconds: float) -> None:
    if outcome.published is None:
        active.notice("save-failed", f"the checkpoint after step {step} failed: {outcome.problem}", step)
        return
    active.emit(
        CheckpointPublished,
        step=step,
        name=checkpoints.name(step, active.context.attempt),
        checkpoint=outcome.published,
        content=outcome.content,
        seconds=seconds,
    )


def _put_plain(objects: Objects, value: Mapping[str, Plain]) -> Slice:
    data = codec.encode_plain(value)
    digest = objects.put(data)
    return Slice(object=digest, offset=0, size_bytes=len(data), digest=digest)


@dataclass(frozen=True)
class Loaded:
    """A checkpoint read back: `rank` is None when it was made by another number of ranks."""

    step: int
    world: int
    fingerprints: dict[str, str]
    common: dict[str, Any]
    rank: dict[str, Any] | None


def load(active: Active, backend: Backend, group: "ProcessGroup | None", digest: Digest) -> Loaded:
    """Bring the backend back to a checkpoint, and return the rest of its state; collective.

    Raises NotFound, CorruptObject, RestoreError.
    """
    objects = active.repo.objects
    checkpoint = objects.get_record(digest, Checkpoint)
    content = objects.get_record(checkpoint.content, Content)
    if content.format != backend.format:
        raise RestoreError(f"the checkpoint is of format {content.format}, and this training reads {backend.format}")
    common = _read_plain(objects, content.common)
    rank = _read_plain(objects, content.ranks[active.rank]) if content.world == active.world else None
    backend.load(objects, content, common["backend"], rank["backend"] if rank is not None else None, group)
    return Loaded(checkpoint.step, content.world, common["fingerprints"], common, rank)


def _read_plain(objects: Objects, part: Slice | None) -> dict[str, Any]:
    value = codec.decode_plain(objects.read(part)) if part is not None else None
    if not isinstance(value, dict):
        raise CorruptObject("the checkpoint's plain state is not a mapping")
    return value


def prove(what: str, restored: Mapping[str, str], saved: Mapping[str, str], step: int) -> None:
    """Raise RestoreError unless what was restored is, name by name and bit by bit, what was saved."""
    names = sorted(name for name in {*restored, *saved} if restored.get(name) != saved.get(name))
    if names:
        listed = ", ".join(f"{name} (saved {saved.get(name)}, restored {restored.get(name)})" for name in names[:5])
        raise RestoreError(
            f"the state restored after step {step} is not what was saved: {len(names)} {what} differ: {listed}",
            hint="`m5ws fsck` tells whether the checkpoint is damaged; if not, the training hides state from m5ws.",
        )
