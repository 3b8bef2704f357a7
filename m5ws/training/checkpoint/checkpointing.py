"""Checkpoints of a run: saved whole or not at all, and verified when they are restored.

Order of a save: the bytes of all ranks, then the content that names them, then the reference. A save that fails is a
notice in the ledger and is retried, now and with the next checkpoint. A failed save does not end the training by
itself.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from m5ws.errors import CorruptObject, Fenced, M5Error
from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.ledger import CheckpointPublished, State
from m5ws.records.store import Format as StoreFormat
from m5ws.records.tree import Slice
from m5ws.repository import contents
from m5ws.repository.contents import PartList
from m5ws.repository.objects import Objects
from m5ws.repository.publishing import ObjectDeleted
from m5ws.repository.references import checkpoints
from m5ws.repository.removals import Removed
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import local_copies
from m5ws.store.local import LocalStore
from m5ws.training.backends.base import Backend, Plain, Saved, Staged
from m5ws.training.fingerprint import fingerprint
from m5ws.training.fingerprint.fingerprint import Fingerprints
from m5ws.training.runtime import collectives
from m5ws.training.runtime.collectives import Group
from m5ws.training.runtime.context import ActiveRank
from m5ws.training.state import rng
from m5ws.training.state.plain_state import RestoreError, StateError

Format = Literal["dcp/1", "deepspeed/1"]
_REPEATS = 3
_REASONS = 8
"""Limit of the reasons in a notice of a failed save."""
_PAUSE_S = 0.5
"""The first pause between tries; the store has retried before it fails."""


@dataclass(frozen=True)
class TrainingState:
    """The state of a training after a step, beside the backend's tensors; plain data.

    `common` is equal on all ranks (scheduler), `rank` is this rank's own (generators, position in the data, the
    script's own state). `head` is the ledger's head after this step. `stalled_s` is the time for which the training was
    stopped; None: until all is saved.
    """

    step: int
    common: dict[str, Plain]
    rank: dict[str, Plain]
    head: Digest
    stalled_s: float | None = None


@dataclass(frozen=True)
class Report:
    """The report of consecutive ranks after their parts of a save: their shares, and the errors of some.

    `heads` are in order of ranks. `began` are the gc plans that were done on all of them (`Objects.begin`).
    """

    problems: tuple[str, ...]
    shares: PartList
    heads: tuple[Digest, ...]
    began: frozenset[str]

    def joined(self, after: "Report", objects: Objects) -> "Report":
        """Return the report of both; parts that are large enough are stored."""
        shares, problems = self.shares, self.problems + after.problems
        try:
            shares = shares.joined(after.shares, objects.put)
        except (M5Error, OSError) as error:
            problems += (f"{type(error).__name__}: {error}",)
        return Report(problems[:_REASONS], shares, self.heads + after.heads, self.began & after.began)


@dataclass(frozen=True)
class _Outcome:
    """The outcome of a save, equal on all ranks: the checkpoint's digest, or the reason why there is none."""

    published: Digest | None = None
    content: Digest = ""
    problem: str | None = None
    fenced: str | None = None
    removed: bool = False
    vanished: bool = False


def save(
    active: ActiveRank,
    staged: Staged,
    format_: Format,
    group: Group,
    moment: TrainingState,
    keep: Path,
    *,
    tries: int = 1,
    is_last: bool = False,
) -> bool:
    """Fingerprint, save and publish a staged state; collective. Return True, on all ranks, if it was published.

    It may run in parallel to the training. A save is tried `tries` times, with pauses; its first failure is a notice.
    If all tries fail, a copy of the last checkpoint goes into a store in the folder `keep`, which is published later.
    Raises Fenced, on all ranks, if a newer attempt of the run has begun, and Removed if the run is removed: the copy is
    then kept until the user drops it.
    """
    started = time.perf_counter()
    tensors = fingerprint.fingerprints(staged.tensors(), group)
    record_fingerprints(active, moment.step, tensors.values, moment.rank["generators"])
    saving = _Saving(active, staged, format_, group, moment, tensors)
    if active.context.saving.local is not None and active.context.goes_on:
        # Before the upload: a restart after a kill uploads from here.
        saving.write_copy()
    outcome = _Outcome()
    for number in range(tries):
        if number:
            time.sleep(_PAUSE_S * 2.0 ** (number - 1))
        try:
            outcome = saving.try_once()
        except Removed:
            if active.context.goes_on:
                saving.keep(keep, "the run was removed, and `m5ws show` lists the kept work")
            raise
        if outcome.published is not None:
            break
        if active.rank == 0 and number == 0:
            active.notice(
                "save-failed", f"the checkpoint after step {moment.step} failed: {outcome.problem}", moment.step
            )
    if outcome.published is None and is_last:
        saving.keep(keep, "a later m5ws command here uploads it")
    if active.rank == 0 and outcome.published is not None:
        active.emit(
            CheckpointPublished,
            step=moment.step,
            name=checkpoints.name(moment.step, active.context.attempt),
            checkpoint=outcome.published,
            content=outcome.content,
            seconds=(seconds := time.perf_counter() - started),
            stalled_s=seconds if moment.stalled_s is None else moment.stalled_s,
        )
    return outcome.published is not None


def record_fingerprints(
    active: ActiveRank,
    step: int,
    tensors: Mapping[str, str],
    generators: Mapping[str, Plain],
    *,
    restored: bool = False,
) -> None:
    """Append the fingerprints after a step to the ledger: the tensors' on rank 0, the generators' on each rank."""
    own = dict(tensors) if active.rank == 0 else {}
    active.emit(State, step=step, tensors=own, generators=rng.digests(generators), restored=restored)


@dataclass(frozen=True)
class _Saving:
    """The save of one staged state."""

    active: ActiveRank
    staged: Staged
    format: Format
    group: Group
    moment: TrainingState
    fingerprints: Fingerprints

    def keep(self, folder: Path, reason: str) -> None:
        """Save into a store in a folder of this machine, if there is room; collective.

        `reason` ends the notice about the kept checkpoint.
        """
        problem = self._save_here(lambda form: Repository.create(LocalStore(folder), form))
        if self.active.rank == 0:
            step = self.moment.step
            message = f"the checkpoint after step {step} is kept on this machine: {reason}"
            if problem is not None:
                message = f"the checkpoint after step {step} is not kept on this machine: {problem}"
            self.active.notice("checkpoint-kept" if problem is None else "limit", message, step)

    def write_copy(self) -> None:
        """Write a copy on the local disks of all nodes, if these have room; collective."""
        context, step = self.active.context, self.moment.step
        name = checkpoints.name(step, context.attempt)
        problem = self._save_here(lambda form: local_copies.create(context.local, context.run, name, form))
        if problem is not None:
            local_copies.remove(context.local, context.run, name)
            if self.active.rank == 0:
                message = f"the checkpoint after step {step} has no copy on the nodes, and is uploaded alone: {problem}"
                self.active.notice_once("local", message, step)

    def _save_here(self, create: Callable[[StoreFormat], Repository]) -> str | None:
        """Save into a store on each rank's machine. Return the problem, equal on all ranks.

        A store there has no attempts. It fences nothing: at most, it has an old reference with other content.
        """
        repo, problem = None, None
        try:
            repo = create(self.active.repo.compatible_format)
        except (M5Error, OSError) as error:
            problem = f"{type(error).__name__}: {error}"
        problem = next(filter(None, collectives.gather(problem, self.group)), None)
        if repo is None or problem is not None:
            return problem
        try:
            return replace(self, active=replace(self.active, repo=repo)).try_once().problem
        except Fenced as error:
            return str(error)

    def try_once(self) -> _Outcome:
        """Try to save once; collective, and the outcome is equal on all ranks. Raises Fenced, on all ranks."""
        outcome = self._written()
        for _ in range(_REPEATS):
            if not outcome.vanished:
                break
            # The staged state is still in memory, so objects that gc deleted are uploaded again.
            self.active.repo.objects.forget()
            outcome = self._written()
        if outcome.fenced is not None:
            raise (Removed if outcome.removed else Fenced)(outcome.fenced)
        return outcome

    def _written(self) -> _Outcome:
        """Write all ranks' bytes and publish them."""
        objects = self.active.repo.objects
        saved, problems, began = Saved(), tuple[str, ...](), frozenset[str]()
        rank = self.active.rank
        try:
            # Collective, so no step that can fail on one rank alone comes before it.
            saved = self.staged.save(objects, self.group, self.fingerprints.apart)
            state = _put_plain(objects, {"backend": saved.rank, **self.moment.rank})
            saved = replace(saved, share=msgspec.structs.replace(saved.share, state=state))
            began = objects.begin()
        except (Fenced, StateError, RestoreError):
            raise
        except (M5Error, OSError) as error:
            problems = (f"rank {rank}: {type(error).__name__}: {error}",)
        own = Report(problems, contents.one_share(rank, saved.share), (self.moment.head,), began)
        report = collectives.reduce(own, lambda before, after: before.joined(after, objects), self.group)
        outcome = self._published(saved, report) if report is not None else None
        return collectives.broadcast(outcome, self.group)

    def _published(self, saved: Saved, report: Report) -> _Outcome:
        """Publish, on rank 0, the bytes that all ranks have written; return the outcome."""
        objects, moment = self.active.repo.objects, self.moment
        if report.problems:
            return _Outcome(problem="; ".join(report.problems))
        try:
            table = objects.put_record(contents.make_table(saved.table)) if saved.table else None
            shares = report.shares
            if saved.whole.rows:
                shares = shares.joined(contents.one_share(self.active.world, saved.whole), objects.put)
            content = Content(
                format=self.format,
                world=self.active.world,
                tensors=table,
                parts=shares.all(objects.put),
                common=_put_plain(objects, {"step": moment.step, "backend": saved.common, **moment.common}),
                fingerprints=_put_plain(objects, self.fingerprints.values),
                apart=saved.apart,
            )
            checkpoint = Checkpoint(
                run=self.active.context.run,
                snapshot=self.active.context.snapshot,
                attempt=self.active.context.attempt,
                step=moment.step,
                content=objects.put_record(content),
                ledger={str(rank): head for rank, head in enumerate(report.heads)},
            )
            # The bytes of all ranks are durable, by their reports. The next line publishes the checkpoint.
            digest = checkpoints.publish(self.active.repo, checkpoint, report.began)
        except Fenced as error:
            return _Outcome(fenced=str(error), removed=isinstance(error, Removed))
        except ObjectDeleted as error:
            return _Outcome(problem=str(error), vanished=True)
        except (M5Error, OSError) as error:
            return _Outcome(problem=f"{type(error).__name__}: {error}")
        return _Outcome(published=digest, content=checkpoint.content)


def _put_plain(objects: Objects, value: Mapping[str, Plain]) -> Slice:
    data = codec.encode_plain(value)
    digest = objects.put(data)
    return Slice(object=digest, offset=0, size_bytes=len(data), digest=digest)


@dataclass(frozen=True)
class RestoredState:
    """A checkpoint that was read: `rank` is None if it was made by another number of ranks.

    `dropped` then names the entries of ranks that are not restored; on rank 0 alone, as are the `fingerprints`.
    """

    step: int
    world: int
    fingerprints: dict[str, str]
    common: dict[str, Any]
    rank: dict[str, Any] | None
    dropped: tuple[str, ...] = ()


def load(active: ActiveRank, backend: Backend, group: Group, digest: Digest) -> RestoredState:
    """Restore the backend to a checkpoint, and return the rest of its state; collective.

    Bytes come from this node's copy, as far as there is an intact copy. Raises NotFound, CorruptObject, RestoreError.
    """
    objects = active.repo.objects
    checkpoint = objects.get_record(digest, Checkpoint)
    name = checkpoints.name(checkpoint.step, checkpoint.attempt)
    objects.near = local_copies.find(active.context.local, checkpoint.run, name)
    try:
        return _load(active, backend, group, checkpoint)
    finally:
        objects.near = None
        if damaged := sorted(objects.damaged_near):
            message = f"{len(damaged)} objects of this node's copy of checkpoint {name} are damaged, and were read from"
            active.notice("limit", f"{message} the store: {damaged[0]}", checkpoint.step)
            objects.damaged_near.clear()


def _load(active: ActiveRank, backend: Backend, group: Group, checkpoint: Checkpoint) -> RestoredState:
    objects = active.repo.objects
    content = objects.get_record(checkpoint.content, Content)
    if content.format != backend.format:
        raise RestoreError(f"the checkpoint is of format {content.format}, and this training reads {backend.format}")
    parts = contents.Parts(objects, content)
    common = _read_plain(objects, content.common, ("backend",))
    fingerprints = _read_plain(objects, content.fingerprints, ()) if active.rank == 0 else {}
    rank = None
    if content.world == active.world:
        rank = _read_plain(objects, parts.share(active.rank).state, ("backend",))
    backend.load(objects, content, parts, common["backend"], rank["backend"] if rank is not None else None, group)
    dropped = tuple(_dropped(objects, content, parts)) if rank is None and active.rank == 0 else ()
    return RestoredState(checkpoint.step, content.world, fingerprints, common, rank, dropped)


def _dropped(objects: Objects, content: Content, parts: contents.Parts) -> Iterator[str]:
    """Yield the entries of ranks that another number of ranks does not restore."""
    generators, entries = set[str](), set[str]()
    for number in range(content.world):
        share = parts.share(number)
        state = _read_plain(objects, share.state, ())
        generators.update(state.get("generators", ()))
        entries.update(name for name in state if name.startswith("state."))
        if content.format == "dcp/1":
            own = state["backend"].get("optimizer", {})
            entries.update(f"optimizer.{name}" for name, values in own.items() if values)
            entries |= {"parameter groups of all ranks but rank 0"} if "groups" in state["backend"] else set()
    if generators:
        yield f"generators ({', '.join(sorted(generators))})"
    yield from sorted(entries)
    yield from (f"{name} of all ranks but rank 0" for name in content.apart)


def load_rank(active: ActiveRank) -> dict[str, Any]:
    """Return this rank's plain state of the checkpoint to resume; empty if another number of ranks made it."""
    objects = active.repo.objects
    assert active.context.resume is not None
    content = objects.get_record(objects.get_record(active.context.resume, Checkpoint).content, Content)
    if content.world != active.world:
        return {}
    return _read_plain(objects, contents.Parts(objects, content).share(active.rank).state, ())


def _read_plain(objects: Objects, part: Slice | None, names: Sequence[str]) -> dict[str, Any]:
    """Return plain state that has all of `names`, each a mapping. Raises CorruptObject."""
    value = codec.decode_plain(objects.read(part)) if part is not None else None
    if not isinstance(value, dict) or not all(isinstance(value.get(name), dict) for name in names):
        raise CorruptObject(f"the checkpoint's plain state lacks {' or '.join(names)}")
    return value


def verify_fingerprints(kind: str, restored: Mapping[str, str], saved: Mapping[str, str], step: int) -> None:
    """Raise RestoreError unless the restored values equal the saved values, name by name and bit by bit."""
    names = sorted(name for name in {*restored, *saved} if restored.get(name) != saved.get(name))
    if names:
        listed = ", ".join(f"{name} (saved {saved.get(name)}, restored {restored.get(name)})" for name in names[:5])
        raise RestoreError(
            f"the state restored after step {step} differs from the saved state: {len(names)} {kind} differ: {listed}",
            hint="`m5ws fsck` checks the checkpoint for damage. Without damage, some state is not recorded.",
        )
