"""A session inside a run: it resumes, records each step, fingerprints and checkpoints.

Invariant: when `end_of_step` returns, the ledger contains all that the step did to the training's state. All ranks do
the same collectives in the same steps.
"""

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from m5ws.errors import UsageError
from m5ws.records.ledger import DataOrder, OtherLoader
from m5ws.records.ledger import Step as StepEvent
from m5ws.training.backends.base import Backend, Plain
from m5ws.training.checkpoint import checkpointing
from m5ws.training.checkpoint.writer import CheckpointWriter
from m5ws.training.dataloader import BatchDigest, Feed
from m5ws.training.fingerprint import fingerprint
from m5ws.training.runtime import collectives, context
from m5ws.training.runtime.phases import Phases
from m5ws.training.session import checkpoint_limits, fork, rehearsal, restore
from m5ws.training.session.agreement import Agreement
from m5ws.training.session.checkpoint_limits import StepWatch
from m5ws.training.session.schedules import Cadence, FingerprintSchedule
from m5ws.training.session.step import Step
from m5ws.training.state import plain_state, rng
from m5ws.training.state.plain_state import RestoreError


class Recorder:
    """The part of a session that only exists inside a run."""

    def __init__(
        self,
        active: context.ActiveRank,
        backend: Backend,
        *,
        feed: Feed | None,
        batches: BatchDigest,
        objects: dict[str, Any],
        generators: dict[str, torch.Generator],
        known: Sequence[object],
        total_steps: int,
        checkpoint_every: int | None,
        fingerprint_every: int | None,
    ) -> None:
        self._active = active
        self._backend = backend
        self._feed = feed
        self._batches = batches
        self._objects = objects
        self._known = known
        self._generators = {**(feed.generators() if feed is not None else {}), **generators}
        self._total = total_steps
        self._group = collectives.new_group()
        self._fingerprints = FingerprintSchedule(fingerprint_every, active.context.fingerprint_at, self._group)
        self._writer = CheckpointWriter(active, backend)
        self._cadence = Cadence(active, checkpoint_every)
        self._agreement = Agreement(self._group)
        self._pending: StepEvent | None = None
        self._pending_step: Step | None = None
        self._first = 1
        self._begun_with = self._rehearsed = backend.layout()
        self._calls = StepWatch([item for item in known if isinstance(item, torch.optim.Optimizer)])
        self._clock = time.perf_counter()
        self._threads = context.Threads(active)
        self.phases = Phases(active)
        self._objects_state()  # State that cannot be stored fails now, not hours later at the first checkpoint.

    # --- begin

    def begin(self) -> int:
        """Restore the checkpoint from which this attempt resumes, if any; return the last step done; collective."""
        for inexact in self._backend.begin():
            if self._active.rank == 0:
                self._active.notice("resume-limit", inexact)
        resume = self._active.context.resume
        if resume is not None:
            self.phases.enter("load", 0)
        step = 0 if resume is None else self._resume(resume)
        if resume is None:
            if self._feed is not None:
                self._feed.start()
            self._probe_loader()
            found, _ = self._fingerprint(0)
            self._backend.rehearse(self._active.repo.objects, self._group, found.apart)
        self._report_limits()
        self._record_order()
        self._first = step + 1
        self._fingerprints.begin(self._first)
        self._active.stop.begin()
        self.phases.enter("step", step)
        self._clock = time.perf_counter()
        return step

    def _resume(self, digest: str) -> int:
        restored = checkpointing.load(self._active, self._backend, self._group, digest)
        for name, item in self._objects.items():
            if fork.is_restarted(self._active, name):
                continue
            if name in restored.common or fork.is_scheduler(name):
                restore.restore_object(name, item, restored.common, restored.step, self._backend)
            elif restored.rank is not None:
                restore.restore_object(name, item, restored.rank, restored.step, self._backend)
        self._restore_position(restored)
        if self._feed is not None:
            self._feed.start()
        self._probe_loader()
        # Last of all: creating an iterator of the loader draws a seed from the global generator.
        generators = self._restore_generators(restored) if restored.rank is not None else {}
        found, states = self._fingerprint(restored.step, restored=True)
        problem: Exception | None = None
        try:
            restore.verify(restored, found.values, states, generators)
        except RestoreError as error:
            problem = error
        collectives.raise_on_all(problem, "restore its state", self._group)
        return restored.step

    def _restore_generators(self, restored: checkpointing.RestoredState) -> dict[str, Plain]:
        """Restore this rank's generators and return their stored states; publish a notice if the device is another."""
        assert restored.rank is not None
        captured = restored.rank.get("devices", ())
        states, seeds, changes = rng.on_device(restored.rank["generators"], captured, rng.devices())
        rng.restore(states, self._generators)
        rng.seed_devices(seeds)
        if changes:
            message = f"the checkpoint was made on another device: {'; '.join(changes)}"
            self._active.notice("resume-limit", message, restored.step)
        return states

    def _restore_position(self, restored: checkpointing.RestoredState) -> None:
        """Restore the position in the data; publish a notice of the state that this attempt does not restore."""
        feed = self._feed
        if restored.rank is None:
            if self._active.rank == 0:
                message = restore.unrestored(feed, restored, self._active.world)
                self._active.notice("resume-limit", message, restored.step)
            if feed is not None and restore.is_elastic(feed, restored):
                feed.restore(restored.common["feed"])
        elif feed is not None and "feed" in restored.rank and not feed.restore(restored.rank["feed"]):
            message = "the checkpoint has no position in the data: the epoch restarts"
            self._active.notice("resume-limit", message, restored.step)

    def _probe_loader(self) -> None:
        """Read the loader's position once, on all ranks, to see whether it can be stored; collective. Raises
        StateError.
        """
        own = self._feed.probe() if self._feed is not None else None
        refusals = [refusal for refusal in collectives.gather(own, self._group) if refusal is not None]
        if self._feed is not None and refusals:
            self._feed.refusal = refusals[0]

    def _record_order(self) -> None:
        """Append the order of the samples, if the loader has one. Raises UsageError if it ignores `--without`."""
        order = self._feed.order() if self._feed is not None else None
        without = self._active.context.spec.without
        if without and (order is None or list(without) != order[0]["without"]):
            raise UsageError(
                f"the run leaves out the samples of {', '.join(without)}, but its data loader does not",
                hint="Read the dataset by m5ws.data.Loader, without `without=`, and register it: session(loader=…).",
            )
        description = order and order[0]
        first = collectives.broadcast(description, self._group)
        if order is not None and self._active.rank == 0:
            self._active.emit(DataOrder, description=order[0], indexes=order[1])
        elif self._feed is not None and description != first:
            # Rank 0 records the samples of all ranks with the same order alone.
            sources = description["sources"] if description else [{"dataset": "."}]
            self._active.emit(OtherLoader, datasets=tuple(source["dataset"] for source in sources))

    def _report_limits(self) -> None:
        """Publish a notice for each limit of a resume."""
        if self._active.rank != 0:
            return
        if self._feed is None:
            self._active.notice("resume-limit", "no data loader is registered: a resume does not restore its position")
        elif not self._feed.restorable:
            self._active.notice("resume-limit", _no_position(self._feed))
        elif self._feed.workers:
            self._active.notice(
                "resume-limit",
                "the data loader has worker processes: a resume does not restore the generators inside them",
            )
        if self._feed is not None and self._feed.restorable and self._feed.undrawn is not None:
            self._active.notice("resume-limit", _no_generator(self._feed.undrawn))

    # --- every step

    def end_of_step(self, step: Step, last: bool) -> None:
        """Record a step that is done; fingerprint and checkpoint if they are due; collective on those steps."""
        self._flush()
        self._calls.end_step()
        self._threads.record(step.number)
        self._record_step(step)
        if step.number == self._first:
            # An optimizer's state exists after its first step: limits fail now, not hours later at the first resume.
            self._backend.check()
            self._rehearse(step.number)
            self._position(step.number)
        stopping, by_clock = self._agreement.on(step.number, self._active.stop.is_requested, self._cadence.is_time)
        if stopping:
            self._active.stop.agree()
        self._writer.raise_errors()
        ends = last or stopping
        if (ends and self._saves_at_end(step.number)) or by_clock or self._cadence.is_due(step.number):
            self._flush()
            with self.phases.inside("save", step.number):
                self._checkpoint(step.number, last=ends, stopping=stopping)
            self._fingerprints.checkpointed(step.number)
        elif last or self._is_traced(step.number):
            self._flush()
            self._fingerprint(step.number)
        elif self._fingerprints.is_due(step.number):
            self._flush()
            if torch.accelerator.is_available():
                # The device may still be computing the step.
                torch.accelerator.synchronize()
            began_s = time.perf_counter()
            self._fingerprint(step.number)
            self._fingerprints.fingerprinted(step.number, time.perf_counter() - began_s)
        if step.number == self._first:
            self._active.note_imports()
        if ends:
            self._flush()
            with self.phases.inside("save", step.number):
                self._writer.join_last()
            self.phases.enter("end", step.number)
            if not stopping:
                # Else the end of the script is protected: torchrun ends all ranks when the first has ended.
                self._active.stop.finish()
        if stopping and not last:
            self._active.stop.end()

    def _is_traced(self, step: int) -> bool:
        """Return True if the state after `step` is the state before or after a traced step."""
        trace = self._active.context.trace
        return trace is not None and trace.first <= step + 1 <= trace.last + 1

    def _saves_at_end(self, step: int) -> bool:
        """Return True if the attempt's last step is saved because it is the last."""
        return step == self._total or self._active.context.goes_on

    def left(self, step: Step) -> None:
        """Publish a notice that the loop was left inside a step, by `break` or an error, without a checkpoint."""
        self._active.stop.finish()
        self._flush()
        self._writer.join()
        self.phases.enter("end", step.number - 1)
        self._active.notice(
            "limit",
            f"the loop was left inside step {step.number} (session.stop() ends it with a checkpoint)",
            step.number,
        )

    def _record_step(self, step: Step) -> None:
        """Append the step's event; at the next step, if its scalars are still being copied from a device."""
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        self._fingerprints.done(seconds)
        self._pending = StepEvent(
            time_s=time.time(),
            step=step.number,
            quantities={},
            batch=self._batches.take(),
            samples=self._take_samples(),
            tokens=step.tokens,
            seconds=seconds,
            total=self._total,
        )
        self._pending_step = step
        if step.is_on_host:
            self._flush()

    def _take_samples(self) -> dict[str, str]:
        """Return the samples of a step: of all ranks on rank 0, and the ids in this rank's own batches."""
        consumed = self._feed.take_consumed() if self._feed is not None else {}
        return {**self._batches.take_ids(), **(consumed if self._active.rank == 0 else {})}

    def _flush(self) -> None:
        event, step = self._pending, self._pending_step
        if event is not None and step is not None:
            self._pending = self._pending_step = None
            self._active.spool.append(msgspec.structs.replace(event, quantities=step.quantities()))

    # --- state

    def _fingerprint(self, step: int, *, restored: bool = False) -> tuple[fingerprint.Fingerprints, dict[str, Plain]]:
        """Fingerprint the present state; collective. Return the tensors' fingerprints and the generators' states."""
        states = rng.capture(self._generators)
        found = fingerprint.fingerprints(self._backend.tensors(), self._group)
        checkpointing.record_fingerprints(self._active, step, found.values, states, restored=restored)
        return found, states

    def _objects_state(self) -> dict[str, Plain]:
        """Return the states of the schedulers and of the script's own objects, by name. Raises StateError."""
        return {
            name: plain_state.encode(item.state_dict(), name, self._backend.takes)
            for name, item in self._objects.items()
        }

    def _checkpoint(self, step: int, *, last: bool, stopping: bool) -> None:
        """Save a checkpoint after a step, unless the deadline of a request to stop is over."""
        began_s = time.perf_counter()
        # A rank that is killed leaves the record of its imports up to its last checkpoint.
        self._active.note_imports()
        self._backend.check()
        self._report_checkpoint(step)
        if self._writer.wait_for_previous(step, stopping=stopping):
            common, rank = self._plain_state(step)
            self._writer.save(step, common, rank, began_s, last=last)
            self._cadence.saved()

    def _rehearse(self, step: int) -> None:
        """Rehearse a save and a restore of the present state; collective. Raises StateError.

        A layout that the session did not begin with gets a notice.
        """
        self._backend.rehearse(self._active.repo.objects, self._group)
        rehearsal.rehearse(self._objects, self._objects_state(), self._known)
        self._rehearsed = self._backend.layout()
        if self._rehearsed != self._begun_with and self._active.rank == 0:
            change = checkpoint_limits.describe_change(self._begun_with, self._rehearsed)
            self._active.notice("resume-limit", change, step)

    def _report_checkpoint(self, step: int) -> None:
        """Publish a notice of each limit of a resume from this checkpoint; collective. Raises StateError."""
        limits = list(self._calls.pending())
        if any(collectives.gather(self._backend.layout() != self._rehearsed, self._group)):
            self._rehearse(step)
        for limit in limits if self._active.rank == 0 else ():
            self._active.notice("resume-limit", limit, step)

    def _plain_state(self, step: int) -> tuple[dict[str, Plain], dict[str, Plain]]:
        """Return the state beside the backend's: the state of all ranks together, and this rank's own."""
        states = rng.capture(self._generators)
        own = self._objects_state()
        # Objects with shards belong to all ranks together.
        shared = {name for name, state in own.items() if fork.is_scheduler(name) or any(plain_state.taken(state))}
        common = {name: own.pop(name) for name in shared}
        feed = {"feed": self._position(step)} if self._feed is not None else {}
        if feed and self._feed is not None and self._feed.elastic:
            common |= self._if_alike(feed, step)
        devices = {"devices": list(used)} if (used := rng.devices()) else {}
        return common, {**own, **feed, **devices, "generators": states}

    def _position(self, step: int) -> dict[str, Plain]:
        """Return the position in the data; none, with a notice, if the loader's state_dict fails. Raises StateError."""
        if self._feed is None:
            return {}
        known = self._feed.refusal
        position = self._feed.state()
        if self._feed.refusal != known:
            self._active.notice("resume-limit", _no_position(self._feed), step)
        return position

    def _if_alike(self, feed: dict[str, Plain], step: int) -> dict[str, Plain]:
        """Return the position in the data if it is equal on all ranks, and so holds for any number; collective."""
        if collectives.equal_on_all(feed, self._active.repo.objects, self._group):
            return feed
        if self._active.rank == 0:
            self._active.notice(
                "resume-limit", "the data loader has elastic = True, but its state differs from rank to rank", step
            )
        return {}


def _no_generator(name: str) -> str:
    return (
        f"the DataLoader in `{name}` of the data loader has no generator: each of its iterators draws a seed from the "
        "global generator. A resume is not exact if it draws after the restore. Give the DataLoader a generator: "
        "DataLoader(…, generator=torch.Generator().manual_seed(1))"
    )


def _no_position(feed: Feed) -> str:
    why = feed.refusal or "has no state_dict and load_state_dict"
    return f"the data loader {why}: a resume restarts the epoch, not exactly (not restorable)"
