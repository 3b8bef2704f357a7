"""Observation of a script that does not use m5ws.session: its steps, with evidence of their results.

A step is one update: all calls of optimizers that follow each other without a forward pass with gradients in between,
in which no parameters are updated twice. Steps are numbered from 1. A step that a gradient scaler skips is no step. Its
forward pass belongs to the next step.

A step is recorded when its last optimizer has been called: before the script can save a checkpoint of it and be killed.
Which optimizer is the last is known from earlier steps. The first step of a run is recorded when the next step begins.

The loss of an optimizer is the sum of the scalars on which `backward()` was called since the call of the optimizer
before.

Invariant: observation changes no bits, draws no random numbers, does no collectives, and never fails a training. After
an error in it, the script goes on without it.
"""

import functools
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import torch

from m5ws.errors import UsageError
from m5ws.records.ledger import Observation, State, Step
from m5ws.training.compat import module_calls
from m5ws.training.fingerprint import fingerprint
from m5ws.training.observation import optimizer_values, place, samples, zero
from m5ws.training.observation.final_weights import FinalWeights
from m5ws.training.observation.forwards import Forwards, leaves
from m5ws.training.observation.names import Names
from m5ws.training.observation.update import Call, Counts, Update, record_state
from m5ws.training.runtime.context import ActiveRank, Threads

_OPTIMIZERS = 16
"""Optimizers of a step whose values are read. A script may have one for each parameter, called in the backward pass."""
_EVERY = 1000
_UNCHECKED = (
    "the script continued after step {}, the last step of the attempts before. No step was repeated, so it is unknown "
    "whether the resume was exact. `m5ws reproduce` shows it"
)
_RESTARTED = "the script started from the beginning: it does the first step again, and continues from no checkpoint"
_NO_PLACE = (
    "no record proves after which step of the run this attempt continues. Its steps are counted from 1, and only its "
    "end can be compared. The line `m5ws.resumed_at(step)` in the script, before its first step, states the last step "
    "that the loaded checkpoint contains"
)
_EARLY = frozenset((1, 2, 5, 10, 20, 50, 100, 200, 500))


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Let an error in an observation end the observation, and never the training."""

    @functools.wraps(method)
    def call(self: "Observer", *arguments: Any) -> None:
        if self._failed:
            return
        try:
            module_calls.call_without_modes(method, self, *arguments)
        except Exception as error:  # noqa: BLE001  # whatever it is, the training goes on
            self._failed = True
            message = f"the steps after step {self.step} are not observed, because of an error: {error!r}"
            self._active.notice("limit", message, self.step)
            self._active.emit(Observation, rank=self._active.rank, failed_after=self._recorded)

    return call


class Observer:
    """Turns calls of modules and optimizers into steps and states of this rank's chain."""

    def __init__(self, active: ActiveRank, final: FinalWeights) -> None:
        self._active = active
        self._earlier: place.Earlier | None = None
        self.names = Names(lambda: self._load_earlier().parts)
        self._final = final
        self._resumed_at: int | None = None
        self._loss: torch.Tensor | None = None
        """The sum of the losses since the last call of an optimizer."""
        self._backwards = 0
        self._forwards = Forwards()
        self._update: Update | None = None
        self._calls: list[tuple[torch.optim.Optimizer, Call]] = []
        """The calls of optimizers that have begun, each within the call before it."""
        self._together: set[frozenset[str]] = set()
        """The labels of the optimizers of each kind of step."""
        self._counts = Counts()
        self._initial: dict[str, str] = {}
        self._asked = frozenset(active.context.fingerprint_at or ())
        self._is_resumed = active.context.attempt > 1 and active.context.spec.fingerprint_every != 0
        self.has_begun = self._numbered = self._failed = False
        """`has_begun`: True after the first call of an optimizer."""
        self._pending: tuple[Update, float, float] | None = None
        """The step that waits for its values, the time of its end, and its seconds."""
        self._recorded = 0
        self._threads = Threads(active)
        self._clock = time.perf_counter()

    # --- forward passes

    def call(
        self, original: Callable[..., Any], module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call an outermost module, and observe its inputs and outputs."""
        if self._update is not None and torch.is_grad_enabled():
            self._before_forward(module)
        output = original(module, *args, **kwargs)
        self._after_forward(module, args, kwargs, output)
        return output

    @_guarded
    def _before_forward(self, module: torch.nn.Module) -> None:
        if self._update is not None and self._is_model(module):
            self._close(self._update.forwards.engine())

    @_guarded
    def _after_forward(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        returned = leaves(output)
        if not any(leaf.requires_grad for leaf in returned) or not self._is_model(module):
            return
        self._forwards.add(module, [leaf for each in (*args, *kwargs.values()) for leaf in leaves(each)], returned)
        self._final.follow_module(module)

    def _is_model(self, module: torch.nn.Module) -> bool:
        return self._final.is_followed(module) or next(module.parameters(), None) is not None

    @_guarded
    def before_backward(self, tensor: torch.Tensor) -> None:
        """Observe a tensor before its backward pass: a scalar is a loss."""
        self._backwards += 1
        if tensor.numel() == 1 and tensor.is_floating_point():
            part = samples.local(tensor)
            # A copy, since the script may change the tensor later.
            loss = part.to(torch.promote_types(part.dtype, torch.float32), copy=True).reshape(())
            self._loss = loss if self._loss is None else self._loss.to(loss.device) + loss

    # --- optimizers

    @_guarded
    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Observe an optimizer before its step: its settings, and the state before the first step of all."""
        if self._forwards.count == 0 and optimizer_values.creates_state(optimizer):
            self._calls.append((optimizer, Call(creates_state=True)))
            return
        outer = self._calls[-1][0] if self._calls else None
        self.names.optimizer(optimizer, within=outer)
        groups = optimizer.param_groups
        call = Call("; ".join(map(optimizer_values.settings, groups)), groups[0].get("lr") if groups else None)
        self._calls.append((optimizer, call))
        if self._update is not None and self._update.updated & optimizer_values.places(optimizer):
            self._close(self._update.forwards.engine())
        # Before each call up to the first update: an optimizer that contains another optimizer has no state of its own.
        if self._update is None and not self._numbered:
            self.has_begun = True
            self._initial = self._fingerprints(self._forwards, [optimizer], initial=True)

    @_guarded
    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Observe an optimizer after its step, while it still has the gradients."""
        call = self._calls.pop()[1]
        if self._calls:
            self._calls[-1][1].calls_another = True
        is_skipped = optimizer_values.is_skipped(optimizer)
        if call.calls_another or call.creates_state or is_skipped:
            return  # The step of the optimizer inside counts, if there is one.
        if self._update is None:
            self._update, self._forwards = Update(self._forwards), Forwards(earlier=self._forwards.modules)
        update = self._update
        update.backwards, self._backwards = update.backwards + self._backwards, 0
        update.is_whole = False
        # A later attempt restored all that it uses for the first time. The state shows whether it is as before.
        update.has_new |= self._is_resumed and bool(self.names.new)
        is_repeated = id(optimizer) in update.optimizers
        update.updated |= optimizer_values.places(optimizer)
        update.optimizers[id(optimizer)] = weakref.ref(optimizer)
        label = self.names.optimizer(optimizer)
        update.labels.add(label)
        if update.forwards.engine() is None:  # The parameters of ZeRO's own optimizer are buffers with padding.
            self._final.follow_optimizer(optimizer, self.names, is_recorded=True)
        if is_skipped is None:
            self._counts.numbers[label] = None
        elif not is_repeated:
            self._counts.add(optimizer, label)
        update.state = None  # The state of more optimizers is read when the step ends, and not after each of them.
        if len(update.optimizers) <= _OPTIMIZERS:
            update.add(optimizer, label, call, self._loss, self._counts.numbers[label])
            # Until its first step has been recorded, an attempt does not know its number.
            number = self.step + (not update.is_recorded)
            if update.forwards.engine() is None and (not self._numbered or update.has_new or self._is_due(number)):
                update.state = self._state(update)
        self._loss = None
        update.is_whole = True
        is_known = bool(self._together) and not any(update.labels < labels for labels in self._together)
        if not update.is_recorded and is_known:
            self._record(update)

    # --- records

    @property
    def step(self) -> int:
        """The last step that has ended."""
        return self._recorded + (self._pending is not None)

    def resume_at(self, step: int) -> None:
        """Continue after a step of the run. Raises UsageError after the first step."""
        if self.has_begun:
            raise UsageError(
                "m5ws.resumed_at() was called after the first step", hint="Call m5ws.resumed_at() earlier."
            )
        self._resumed_at = step

    @_guarded
    def finish(self) -> None:
        """Record the last step, when the script has ended."""
        # An engine may be gone or not, as the garbage collector has it, so its last state is not recorded.
        self._close(None, has_ended=True)
        self._flush()

    def _close(self, engine: torch.nn.Module | None, has_ended: bool = False) -> None:
        """End the step whose optimizers have been called, and record the state after it: its own, or its engine's."""
        update, self._update = self._update, None
        if update is None or not update.is_whole:
            return
        self._together.add(frozenset(update.labels))
        if not update.is_recorded:
            self._record(update)
        if update.number and (update.has_new or self._is_due(update.number)):
            state = self._last_state(update, engine, has_ended)
            if state is not None:
                self._flush()
                self._active.spool.append(msgspec.structs.replace(state, step=update.number))

    def _record(self, update: Update) -> None:
        """Record a step: at once if all values are on the host, and otherwise before the next step."""
        update.is_recorded = True
        self._flush()
        now = time.perf_counter()
        self._pending = (update, time.time(), now - self._clock)
        self._clock = now
        is_first = not self._numbered
        if is_first or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._flush()
        update.number = self.step
        self._threads.record(self.step)
        if is_first:
            self._active.note_imports()
        if self.step == self._active.context.killed_after:
            self._flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def _last_state(self, update: Update, engine: torch.nn.Module | None, has_ended: bool) -> State | None:
        """Return the state after a step, None if it was not read in time."""
        if engine is not None:
            return record_state(zero.fingerprints(engine))
        is_late = len(update.optimizers) > _OPTIMIZERS
        return self._state(update) if is_late and not has_ended else update.state

    def _flush(self) -> None:
        """Append the step that waits for its values."""
        if self._pending is None:
            return
        (update, time_s, seconds), self._pending = self._pending, None
        step = update.event(time_s, seconds)
        if not self._numbered:
            self._begin(step)
        self._recorded += 1
        self._describe()
        self._active.spool.append(msgspec.structs.replace(step, step=self._recorded))

    def _load_earlier(self) -> place.Earlier:
        """Return the records of the earlier attempts."""
        if self._earlier is None:
            context = self._active.context
            self._earlier = place.load(self._active.repo, context.run, context.attempt, self._active.rank)
            self._together |= self._earlier.kinds
        return self._earlier

    def _begin(self, first: Step) -> None:
        """Find the number of the first step: an attempt may continue from the script's own checkpoint."""
        self._numbered = True
        active, after, earlier = self._active, self._resumed_at, self._load_earlier()
        is_resumed = active.context.attempt > 1
        if after is None:
            after = place.find(earlier, first, self._initial) if is_resumed else 0
        if after is None:
            active.notice("unplaced", _NO_PLACE)
        elif active.rank == 0 and is_resumed and earlier.last:
            if after == 0:
                active.notice("resume", _RESTARTED, 0)
            elif after == earlier.last:
                active.notice("resume-unchecked", _UNCHECKED.format(after), after)
        self._recorded = after or 0
        new, self.names.new, self._earlier = self.names.new, {}, None
        active.emit(Observation, rank=active.rank, after=after, unplaced=after is None, parts=new)
        active.emit(State, step=self._recorded, tensors=self._initial, restored=is_resumed)
        self._initial = {}

    def _describe(self) -> None:
        """Append the modules and optimizers that are new."""
        new, self.names.new = self.names.new, {}
        if new:
            self._active.emit(Observation, rank=self._active.rank, parts=new)

    def _is_due(self, step: int) -> bool:
        """Return True if the state after a step is recorded."""
        every = self._active.context.spec.fingerprint_every
        return every != 0 and (step in self._asked or step in _EARLY or step % (every or _EVERY) == 0)

    def _state(self, update: Update) -> State:
        optimizers = [optimizer for ref in update.optimizers.values() if (optimizer := ref()) is not None]
        return record_state(self._fingerprints(update.forwards, optimizers))

    def _fingerprints(
        self, forwards: Forwards, optimizers: Iterable[torch.optim.Optimizer], *, initial: bool = False
    ) -> dict[str, str]:
        engine = forwards.engine()
        if engine is not None:
            self.names.module(engine)
            return zero.fingerprints(engine)
        tensors = self.names.tensors(forwards.alive(), optimizers, initial=initial)
        sums = fingerprint.sums(list(tensors.values()))
        return {name: f"{value:016x}" for name, value in sorted(zip(tensors, sums, strict=True))}
