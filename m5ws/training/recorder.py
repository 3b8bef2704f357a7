"""A session inside a run: it resumes, records each step, fingerprints and checkpoints.

Invariant: what has been done to the training's state when `end_of_step` returns is what the ledger says of that
step; all ranks do the same collectives in the same steps.
"""

import time
from collections.abc import Mapping
from typing import Any

import msgspec
import torch

from m5ws.events import State as StateEvent
from m5ws.events import Step as StepEvent
from m5ws.training import checkpointing, context, control, facts, fingerprint, isolation, plain, rng
from m5ws.training.backend import Backend, Plain
from m5ws.training.feed import Feed
from m5ws.training.step import Step

_FINAL_TRIES = 4


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
        total_steps: int,
        checkpoint_every: int | None,
        fingerprint_every: int | None,
    ) -> None:
        self._active = active
        self._backend = backend
        self._feed = feed
        self._objects = objects
        self._generators = {**(feed.generators() if feed is not None else {}), **generators}
        self._total = total_steps
        self._checkpoint_every = checkpoint_every
        self._fingerprint_every = fingerprint_every
        self._group = control.new_group()
        self._pending: StepEvent | None = None
        self._pending_step: Step | None = None
        self._first = 1
        self._clock = time.perf_counter()
        self._objects_state()  # What cannot be stored is found now, not after hours at the first checkpoint.

    # --- the beginning

    def begin(self) -> int:
        """Restore the checkpoint that this attempt resumes from, if any; return the last step done; collective."""
        self._say_limits()
        resume = self._active.context.resume
        step = 0 if resume is None else self._resume(resume)
        if resume is None:
            if self._feed is not None:
                self._feed.start()
                self._feed.state()
            self._fingerprint(0)
        self._first = step + 1
        self._active.stop.in_steps = True
        self._clock = time.perf_counter()
        return step

    def _resume(self, digest: str) -> int:
        loaded = checkpointing.load(self._active, self._backend, self._group, digest)
        for name, item in self._objects.items():
            source = loaded.common if name == "scheduler" else loaded.rank
            if source is not None:
                self._restore_object(name, item, source, loaded.step)
        generators: dict[str, Plain] = {}
        if loaded.rank is None:
            self._active.notice(
                "limit",
                f"the checkpoint was made by {loaded.world} ranks and there are {self._active.world}: generators, the "
                "position in the data and what differs from rank to rank are not restored",
                loaded.step,
            )
        elif self._feed is not None and "feed" in loaded.rank:
            self._feed.restore(loaded.rank["feed"])
        if self._feed is not None:
            self._feed.start()
        if loaded.rank is not None:
            # Last of all: making an iterator of the loader draws a seed from the global generator.
            generators = loaded.rank["generators"]
            rng.restore(generators, self._generators)
        states = rng.capture(self._generators)
        tensors = self._emit_state(loaded.step, states, restored=True)
        if loaded.rank is None:
            checkpointing.prove("tensors", *_alike(tensors, loaded.fingerprints), loaded.step)
        else:
            checkpointing.prove("tensors", tensors, loaded.fingerprints, loaded.step)
            checkpointing.prove("generators", rng.digests(states), rng.digests(generators), loaded.step)
        return loaded.step

    def _restore_object(self, name: str, item: Any, source: Mapping[str, Plain], step: int) -> None:
        if name not in source:
            raise plain.RestoreError(f"the checkpoint after step {step} has no {name}")
        item.load_state_dict(plain.decode(source[name]))
        if plain.encode(item.state_dict(), name) != source[name]:
            raise plain.RestoreError(f"the state_dict of {name} is not the one that it was given after step {step}")

    def _say_limits(self) -> None:
        """Note what a resume cannot bring back."""
        if self._active.rank != 0:
            return
        if self._feed is None:
            self._active.notice("limit", "no data loader is registered: a resume does not restore its position")
        elif not self._feed.restorable:
            self._active.notice(
                "limit",
                "the data loader has no state_dict and load_state_dict: a resume begins the epoch anew, not exactly",
            )
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
        self._hold(step)
        stopping = self._active.stop.due(step.number)
        checkpoint = last or stopping or _falls_on(step.number, self._checkpoint_every)
        if checkpoint or _falls_on(step.number, self._fingerprint_every):
            self._flush()
            tensors, states = self._fingerprint(step.number)
            if checkpoint:
                self._checkpoint(step.number, tensors, states, tries=_FINAL_TRIES if last or stopping else 1)
        if step.number == self._first:
            self._say_what_was_loaded()
        if last or stopping:
            self._active.stop.in_steps = False
            isolation.check(self._active.context)
        if stopping and not last:
            raise SystemExit(self._active.stop.exit_code)

    def left(self, step: Step) -> None:
        """Note that the loop was left in the middle of a step, by `break` or an error: there is no last checkpoint."""
        self._active.stop.in_steps = False
        self._flush()
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

    def _fingerprint(self, step: int) -> tuple[dict[str, str], dict[str, Plain]]:
        states = rng.capture(self._generators)
        return self._emit_state(step, states), states

    def _emit_state(self, step: int, states: Mapping[str, Plain], restored: bool = False) -> dict[str, str]:
        tensors = fingerprint.fingerprints(self._backend.tensors(), self._group)
        own = tensors if self._active.rank == 0 else {}
        self._active.emit(StateEvent, step=step, tensors=own, generators=rng.digests(states), restored=restored)
        return tensors

    def _objects_state(self) -> dict[str, Plain]:
        """Return the states of the scheduler and of the script's own objects, by name. Raises StateError."""
        return {name: plain.encode(item.state_dict(), name) for name, item in self._objects.items()}

    def _checkpoint(self, step: int, tensors: dict[str, str], generators: dict[str, Plain], tries: int) -> None:
        own = self._objects_state()
        common = {"scheduler": own.pop("scheduler")} if "scheduler" in own else {}
        feed = {"feed": self._feed.state()} if self._feed is not None else {}
        state = checkpointing.State(step, tensors, common, {**own, **feed, "generators": generators})
        for attempt in range(tries):
            if attempt:
                time.sleep(2.0**attempt)  # There is no later checkpoint to try again at.
            if checkpointing.save(self._active, self._backend, self._group, state):
                return


def _alike(restored: dict[str, str], saved: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return both without what differed from rank to rank when it was saved: another number of ranks has no such."""
    apart = {name.rpartition("@")[0] for name in saved if "@" in name}

    def same_on_all(found: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in found.items() if name.partition("@")[0] not in apart}

    return same_on_all(restored), same_on_all(saved)


def _falls_on(step: int, every: int | None) -> bool:
    return every is not None and every > 0 and step % every == 0


def _with_quantities(event: StepEvent, quantities: dict[str, str]) -> StepEvent:
    return msgspec.structs.replace(event, quantities=quantities)
