"""A session inside a run: it resumes, records each step, fingerprints and checkpoints.

Invariant: what has been done to the training's state when `end_of_step` returns is what the ledger says of that
step; all ranks do the same collectives in the same steps.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from m5ws.records.launch import UNSAVED
from m5ws.records.ledger import Setting
from m5ws.records.ledger import Step as StepEvent
from m5ws.training.backends.base import Backend, Plain
from m5ws.training.checkpoint import checkpointing
from m5ws.training.checkpoint.background_save import Saver
from m5ws.training.dataloader import Feed
from m5ws.training.fingerprint import fingerprint
from m5ws.training.loop import fork, rehearsal
from m5ws.training.loop.checkpoint_schedule import Cadence
from m5ws.training.loop.step import Step
from m5ws.training.runtime import collectives, context, facts, isolation
from m5ws.training.state import plain_state, rng
from m5ws.training.state.staging import Buffers, Live, available_bytes

_TRIES = 3
_FINAL_TRIES = 4
_HINT = "Where a fork has another kind of schedule: m5ws run --from … --restart schedule."
_NOTABLE_S = 1.0
_SHARE = 0.8
"""How much of the free memory the copies of a state may take; the training's own use goes up and down."""


class Recorder:
    """Everything of a session that only happens inside a run."""

    def __init__(
        self,
        active: context.Active,
        backend: Backend,
        *,
        feed: Feed | None,
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
        self._objects = objects
        self._known = known
        self._generators = {**(feed.generators() if feed is not None else {}), **generators}
        self._total = total_steps
        self._fingerprint_every = fingerprint_every
        self._group = collectives.new_group()
        self._saving = active.context.saving
        self._savers_group = collectives.new_group()
        self._saver = Saver(self._saving.failures)
        self._buffers = Buffers()
        self._cramped = False
        self._cadence = Cadence(active, checkpoint_every)
        self._pending: StepEvent | None = None
        self._pending_step: Step | None = None
        self._first = 1
        self._clock = time.perf_counter()
        self._threads = active.facts.get("threads")
        self._objects_state()  # What cannot be stored is found now, not after hours at the first checkpoint.

    # --- the beginning

    def begin(self) -> int:
        """Restore the checkpoint that this attempt resumes from, if any; return the last step done; collective."""
        for inexact in self._backend.begin():
            if self._active.rank == 0:
                self._active.notice("limit", inexact)
        resume = self._active.context.resume
        step = 0 if resume is None else self._resume(resume)
        if resume is None:
            if self._feed is not None:
                self._feed.start()
            self._probe()
            self._fingerprint(0)
            self._backend.rehearse(self._active.repo.objects, self._group)
        self._say_limits()
        self._first = step + 1
        self._active.stop.in_steps = True
        self._clock = time.perf_counter()
        return step

    def _resume(self, digest: str) -> int:
        loaded = checkpointing.load(self._active, self._backend, self._group, digest)
        for name, item in self._objects.items():
            if fork.begins_anew(self._active, name):
                continue
            if name in loaded.common or name == "scheduler":
                self._restore_object(name, item, loaded.common, loaded.step)
            elif loaded.rank is not None:
                self._restore_object(name, item, loaded.rank, loaded.step)
        generators: dict[str, Plain] = {}
        if loaded.rank is None:
            self._active.notice("limit", self._lost(loaded), loaded.step)
            if self._elastic(loaded) and self._feed is not None:
                self._feed.restore(loaded.common["feed"])
        elif self._feed is not None and "feed" in loaded.rank and not self._feed.restore(loaded.rank["feed"]):
            self._active.notice("limit", "the checkpoint has no position in the data: the epoch restarts", loaded.step)
        if self._feed is not None:
            self._feed.start()
        self._probe()
        if loaded.rank is not None:
            # Last of all: making an iterator of the loader draws a seed from the global generator.
            generators = loaded.rank["generators"]
            rng.restore(generators, self._generators)
        tensors, states = self._fingerprint(loaded.step, restored=True)
        if loaded.rank is None:
            checkpointing.prove("tensors", *_alike(_bits(tensors), _bits(loaded.fingerprints)), loaded.step)
        else:
            checkpointing.prove("tensors", *_on_their_ranks(tensors, loaded.fingerprints), loaded.step)
            checkpointing.prove("generators", rng.digests(states), rng.digests(generators), loaded.step)
        return loaded.step

    def _probe(self) -> None:
        """Find out whether the position in the data can be had, on all ranks; collective. Raises StateError."""
        own = self._feed.probe() if self._feed is not None else None
        refusals = [refusal for refusal in collectives.gather(own, self._group) if refusal is not None]
        if self._feed is not None and refusals:
            self._feed.refusal = refusals[0]

    def _elastic(self, loaded: checkpointing.Loaded) -> bool:
        """Return whether the position in the data is known for any number of ranks."""
        feed = self._feed
        return feed is not None and feed.elastic and feed.restorable and "loader" in loaded.common.get("feed", {})

    def _lost(self, loaded: checkpointing.Loaded) -> str:
        """Say what a checkpoint that another number of ranks made does not bring back."""
        made = f"the checkpoint was made by {loaded.world} ranks and there are {self._active.world}: generators"
        if self._elastic(loaded):
            return f"{made} and what differs from rank to rank are not restored; the loader's position is"
        why = " (no loader that has elastic = True made it, and reads it)" if self._feed is not None else ""
        return f"{made}, the position in the data{why} and what differs from rank to rank are not restored"

    def _restore_object(self, name: str, item: Any, source: Mapping[str, Plain], step: int) -> None:
        if name not in source:
            raise plain_state.RestoreError(f"the checkpoint after step {step} has no {name}")
        try:
            item.load_state_dict(plain_state.decode(source[name], self._backend.given))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise plain_state.RestoreError(
                f"{name} does not take its state after step {step}: {error!r}", hint=_HINT
            ) from error
        if plain_state.encode(item.state_dict(), name, self._backend.takes) != source[name]:
            raise plain_state.RestoreError(
                f"the state_dict of {name} is not the one that it was given after step {step}", hint=_HINT
            )

    def _say_limits(self) -> None:
        """Note what a resume cannot bring back."""
        if self._active.rank != 0:
            return
        if self._feed is None:
            self._active.notice("limit", "no data loader is registered: a resume does not restore its position")
        elif not self._feed.restorable:
            self._active.notice("limit", _no_position(self._feed))
        elif self._feed.workers:
            self._active.notice(
                "limit", "the data loader has worker processes: a resume does not restore the generators inside them"
            )

    def _say_what_was_loaded(self) -> None:
        """Note libraries that came with the first collectives, as NCCL's network plugin and libfabric do."""
        now = facts.loaded()
        before = self._active.facts
        new = [f"{name.removeprefix('loaded.')}: {path}" for name, path in now.items() if path != before.get(name)]
        if new:
            self._active.notice("loaded", "; ".join(new), self._first)

    # --- every step

    def end_of_step(self, step: Step, last: bool) -> None:
        """Record a step that is done; fingerprint and checkpoint where it is time to; collective on those steps."""
        self._flush()
        self._note_threads(step.number)
        self._hold(step)
        if step.number == self._first:
            # What an optimizer holds is there after its first step: found now, not after hours at the first resume.
            self._backend.check()
            self._backend.rehearse(self._active.repo.objects, self._group)
            rehearsal.rehearse(self._objects, self._objects_state(), self._known)
            self._position(step.number)
        stopping = self._active.stop.due(step.number)
        if not self._saver.busy:
            self._saver.settle()
        ends = last or stopping
        if (ends and self._saves_at_end(step.number)) or self._cadence.due(step.number):
            self._flush()
            self._checkpoint(step.number, last=ends, stopping=stopping)
        elif last or _falls_on(step.number, self._fingerprint_every) or self._around(step.number):
            self._flush()
            self._fingerprint(step.number)
        if step.number == self._first:
            self._say_what_was_loaded()
            self._active.note_imports()
        if ends:
            self._flush()
            self._saver.settle(self._active.stop.left_s(self._saving.deadline_s))
            self._active.stop.in_steps = False
            isolation.check(self._active.context)
        if stopping and not last:
            raise SystemExit(self._active.stop.exit_code)

    def _around(self, step: int) -> bool:
        """Return whether the state after `step` belongs to a step that is looked into: before it or after it."""
        trace = self._active.context.trace
        return trace is not None and trace.first <= step + 1 <= trace.last + 1

    def _note_threads(self, step: int) -> None:
        """Record how many threads torch uses when that is another number than before: sums are split by it."""
        now = str(torch.get_num_threads())
        if self._threads is not None and now != self._threads:
            self._active.emit(Setting, rank=self._active.rank, step=step, name="threads", value=now)
            self._threads = now

    def _saves_at_end(self, step: int) -> bool:
        """Return whether the attempt's last step, which this is, is saved for that alone."""
        return step == self._total or self._active.context.goes_on

    def left(self, step: Step) -> None:
        """Note that the loop was left in the middle of a step, by `break` or an error: there is no last checkpoint."""
        self._active.stop.in_steps = False
        self._flush()
        self._saver.settle(self._saving.deadline_s)
        self._active.notice(
            "limit",
            f"the loop was left inside step {step.number} (session.stop() ends it with a checkpoint)",
            step.number,
        )

    def _hold(self, step: Step) -> None:
        """Write the step's event; if its scalars are on their way from a device, at the next step."""
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        self._pending = StepEvent(
            time_s=time.time(),
            step=step.number,
            quantities={},
            batch=self._feed.take_digest() if self._feed is not None else None,
            tokens=step.tokens,
            seconds=seconds,
            total=self._total,
        )
        self._pending_step = step
        if step.settled:
            self._flush()

    def _flush(self) -> None:
        event, step = self._pending, self._pending_step
        if event is not None and step is not None:
            self._pending = self._pending_step = None
            self._active.spool.append(_with_quantities(event, step.quantities()))

    # --- state

    def _fingerprint(self, step: int, *, restored: bool = False) -> tuple[dict[str, str], dict[str, Plain]]:
        """Fingerprint the state now; collective. Return the tensors' fingerprints, and the generators' states."""
        states = rng.capture(self._generators)
        tensors = fingerprint.fingerprints(self._backend.tensors(), self._group)
        checkpointing.emit_state(self._active, step, tensors, states, restored=restored)
        return tensors, states

    def _objects_state(self) -> dict[str, Plain]:
        """Return the states of the scheduler and of the script's own objects, by name. Raises StateError."""
        return {
            name: plain_state.encode(item.state_dict(), name, self._backend.takes)
            for name, item in self._objects.items()
        }

    def _checkpoint(self, step: int, *, last: bool, stopping: bool) -> None:
        """Stage the state after a step, and save it: beside the training, or, if it is the last, before going on."""
        began_s = time.perf_counter()
        # A rank that is killed leaves what it had loaded up to its last checkpoint.
        self._active.note_imports()
        self._backend.check()
        self._wait_for_the_one_before(step, self._left_s() if stopping else None)
        if self._saver.busy:
            self._give_up(step)
            return
        states = rng.capture(self._generators)
        own = self._objects_state()
        # What has shards is all ranks' together.
        shared = {name for name, state in own.items() if name == "scheduler" or any(plain_state.taken(state))}
        common = {name: own.pop(name) for name in shared}
        feed = {"feed": self._position(step)} if self._feed is not None else {}
        if feed and self._feed is not None and self._feed.elastic:
            common |= self._if_alike(feed, step)
        beside = self._saving.asynchronous and not last and self._room()
        staged = self._backend.stage(self._buffers if beside else Live())
        self._buffers.wait()
        moment = checkpointing.Moment(
            step,
            common,
            {**own, **feed, "generators": states},
            self._active.spool.head,
            stalled_s=time.perf_counter() - began_s if beside else None,
        )
        save = partial(
            checkpointing.save,
            self._active,
            staged,
            self._backend.format,
            self._savers_group,
            moment,
            tries=_FINAL_TRIES if last else _TRIES,
            keep=Path(self._active.context.spool_dir).with_name(UNSAVED) if last else None,
        )
        if beside:
            self._saver.begin(save)
        elif last:
            self._save_in_time(save, step)
        else:
            self._saver.run(save)
            self._saver.settle()
        self._cadence.saved()

    def _position(self, step: int) -> dict[str, Plain]:
        """Return the position in the data; a loader that fails to say its own ends nothing. Raises StateError."""
        if self._feed is None:
            return {}
        known = self._feed.refusal
        found = self._feed.state()
        if self._feed.refusal != known:
            self._active.notice("limit", _no_position(self._feed), step)
        return found

    def _if_alike(self, feed: dict[str, Plain], step: int) -> dict[str, Plain]:
        """Return the position in the data if it is the same on all ranks, and so holds for any number; collective."""
        if collectives.alike(feed, self._active.repo.objects, self._group):
            return feed
        if self._active.rank == 0:
            self._active.notice(
                "limit", "the data loader says it is elastic, and its state differs from rank to rank", step
            )
        return {}

    def _wait_for_the_one_before(self, step: int, left_s: float | None) -> None:
        """Only one state is staged at a time: a checkpoint that is due waits for the one before to be published."""
        waited_s = self._saver.settle(left_s)
        if waited_s >= _NOTABLE_S:
            self._active.notice(
                "checkpoint-waited",
                f"the training stood still for {waited_s:.1f} s after step {step}, until the checkpoint before was "
                "saved: checkpoints are due sooner than they can be sent",
                step,
            )

    def _save_in_time(self, save: Callable[[], bool], step: int) -> None:
        """Save what is the last checkpoint; if this rank was asked to stop, for as long as it is given."""
        left_s = self._left_s()
        if left_s is None:
            self._saver.run(save)
            return
        self._saver.begin(save)
        self._saver.settle(left_s)
        if self._saver.busy:
            self._give_up(step)

    def _left_s(self) -> float | None:
        return self._active.stop.left_s(self._saving.deadline_s)

    def _give_up(self, step: int) -> None:
        self._active.notice(
            "save-failed",
            f"the last checkpoint, after step {step}, was not saved in {self._saving.deadline_s:g} s "
            "([checkpoint] deadline_s): it is given up",
            step,
        )

    def _room(self) -> bool:
        """Return whether memory has room for a copy of the state, saying so once if it has not."""
        if self._buffers.size_bytes:
            return True
        needed = sum(piece.tensor.nbytes for piece in self._backend.tensors())
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        free = available_bytes()
        if needed * ranks <= _SHARE * free:
            return True
        if not self._cramped:
            self._cramped = True
            self._active.notice(
                "limit",
                f"a copy of the state takes {needed >> 20} MiB on each of {ranks} ranks, {free >> 20} MiB are free: "
                "the training stands still while a checkpoint is saved",
            )
        return False


def _no_position(feed: Feed) -> str:
    why = feed.refusal or "has no state_dict and load_state_dict"
    return f"the data loader {why}: a resume restarts the epoch, not exactly (not restorable)"


def _alike(restored: dict[str, str], saved: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return both without what differed from rank to rank when it was saved: another number of ranks has no such."""
    apart = {name.rpartition("@")[0] for name in saved if "@" in name}

    def same_on_all(found: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in found.items() if name.partition("@")[0] not in apart}

    return same_on_all(restored), same_on_all(saved)


def _on_their_ranks(restored: dict[str, str], saved: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return both; the ranks that hold a tensor are left out if the model is on other ranks than when it was saved."""
    if all(value == saved.get(name) for name, value in restored.items() if name.startswith("model.")):
        return restored, saved
    return _bits(restored), _bits(saved)


def _bits(found: dict[str, str]) -> dict[str, str]:
    return {name: fingerprint.bits(value) for name, value in found.items()}


def _falls_on(step: int, every: int | None) -> bool:
    return every is not None and every > 0 and step % every == 0


def _with_quantities(event: StepEvent, quantities: dict[str, str]) -> StepEvent:
    return msgspec.structs.replace(event, quantities=quantities)
