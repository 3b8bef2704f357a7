"""The session: a training loop that records every step, and that resumes exactly where it stopped.

    session = m5ws.session(model, optimizer, scheduler=scheduler, loader=loader, total_steps=1000)
    for step in session.steps():
        batch = step.next_batch()
        ...
        step.record(loss=loss, grad_norm=norm, lr=lr)

Outside `m5ws run` the same loop runs, and records nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from m5ws.errors import UsageError
from m5ws.training.backends.base import Backend
from m5ws.training.dataloader import BatchDigest, Feed
from m5ws.training.observation import watch
from m5ws.training.runtime import context
from m5ws.training.session import fork
from m5ws.training.session.fork import Fork
from m5ws.training.session.recorder import Recorder
from m5ws.training.session.step import Step
from m5ws.training.state import rng

if TYPE_CHECKING:
    from m5ws.training.trace.tracing import Tracer


def seed(default: int = 0) -> int:
    """Seed Python, NumPy and torch with the run's seed, or `default` if it has none, and return it."""
    active = context.active()
    given = active.context.spec.seed if active is not None else None
    chosen = default if given is None else given
    rng.seed_all(chosen)
    return chosen


def session(
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    engine: Any = None,
    scheduler: Any = None,
    loader: Any = None,
    total_steps: int,
    state: Mapping[str, Any] | None = None,
    checkpoint_every: int | None = None,
    fingerprint_every: int | None = None,
) -> "Session":
    """Register the parts of the training: a model and its optimizers, or a DeepSpeed engine; collective.

    - `model`: a module, also with FSDP2 or DDP. `optimizer`: one, several, or None.
    - `engine`: DeepSpeed's engine, in the place of both. Its own scheduler is saved by DeepSpeed.
    - `scheduler`: one learning rate scheduler or several, each with `state_dict` and `load_state_dict`.
    - `loader`: the batches of an epoch. It has a position if it has `state_dict` and `load_state_dict`. The session
      calls `set_epoch` of the loader, its `sampler` and its `batch_sampler` before each epoch: the script need not.
    - `total_steps`: the number of the last step.
    - `state`: more objects with `state_dict` and `load_state_dict`, and torch generators, by name.
    - `checkpoint_every`, `fingerprint_every`: steps between checkpoints and between fingerprints, unless the settings
      of the run have such a number.

    Raises UsageError, StateError (some state cannot be stored).
    """
    if (model is None) == (engine is None):
        raise UsageError("m5ws.session() takes a model (and its optimizer) or engine=, but not both")
    active = context.active()
    context.warn_unrecorded()
    origin = active.context.parent if active is not None else None
    restart = origin is not None and "data" in origin.restart
    batches = BatchDigest() if active is not None else None
    feed = Feed(loader, batches, restart) if loader is not None else None
    recorder = started = tracer = None
    if active is not None and batches is not None:
        own = _named(state)
        parts = [model if engine is None else engine, *own.values()]
        modules = [part for part in parts if isinstance(part, torch.nn.Module)]
        if observed := watch.begin_session(modules, _as_tuple(optimizer), engine):
            active.notice("limit", f"{observed} steps before the session began are recorded beside its own", observed)
        spec = active.context.spec
        recorder = Recorder(
            active,
            _backend(model, optimizer, engine, own),
            feed=feed,
            batches=batches,
            objects={**fork.named_schedulers(_as_tuple(scheduler)), **own},
            generators=_generators(state),
            known=(model, engine, loader, *_as_tuple(optimizer), getattr(engine, "optimizer", None)),
            total_steps=total_steps,
            checkpoint_every=checkpoint_every if spec.checkpoint_every is None else spec.checkpoint_every,
            fingerprint_every=fingerprint_every if spec.fingerprint_every is None else spec.fingerprint_every,
        )
        if origin is not None:
            trained = (engine.optimizer,) if engine is not None else _as_tuple(optimizer)
            planned = _as_tuple(engine.lr_scheduler if engine is not None and scheduler is None else scheduler)
            started = fork.Fork(active, origin, trained, planned, _generators(state), feed.generators() if feed else {})
        tracer = _tracer(
            active,
            model if engine is None else engine.module,
            (engine,) if engine is not None else _as_tuple(optimizer),
            feed,
            state,
        )
    return Session(recorder, feed, batches, total_steps, started, tracer)


def _tracer(
    active: context.ActiveRank, model: Any, optimizers: Sequence[Any], feed: Feed | None, state: Any
) -> "Tracer | None":
    """Return the tracer of this attempt's trace, if it has one; its module is not imported otherwise."""
    if active.context.trace is None:
        return None
    from m5ws.training.trace.tracing import Tracer

    named = {**(feed.generators() if feed is not None else {}), **_generators(state)}
    tracer = Tracer(active, active.context.trace, model, optimizers, named)
    if feed is not None:
        feed.seen = tracer.batch
    return tracer


def _as_tuple(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, (list, tuple)) else () if given is None else (given,)


def _backend(model: Any, optimizer: Any, engine: Any, own: Mapping[str, Any]) -> Backend:
    if engine is not None:
        from m5ws.training.backends.deepspeed.backend import DeepSpeedBackend

        backend: Backend = DeepSpeedBackend(engine)
        return backend
    from m5ws.training.backends.torch_backend import TorchBackend

    if hasattr(model, "module") and type(model).__module__.partition(".")[0] == "deepspeed":
        raise UsageError("the model is a DeepSpeed engine: register the engine by m5ws.session(engine=engine, …)")
    return TorchBackend(model, optimizer, own)


def _generators(state: Mapping[str, Any] | None) -> dict[str, torch.Generator]:
    return {name: item for name, item in (state or {}).items() if isinstance(item, torch.Generator)}


def _named(state: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the script's own objects by their stored names. Raises UsageError."""
    objects = {name: item for name, item in (state or {}).items() if not isinstance(item, torch.Generator)}
    for name, item in objects.items():
        if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise UsageError(f"state[{name!r}] is a {type(item).__qualname__} without state_dict and load_state_dict")
    return {f"state.{name}": item for name, item in objects.items()}


class Session:
    """A registered training, returned by `m5ws.session`. `first_step` is the step that it begins with.

    A loop of your own takes its steps from `steps()`. A framework that owns the loop calls `begin()` once, `observe()`
    for each batch, and `end_step()` after each step, until `should_stop`.
    """

    def __init__(
        self,
        recorder: Recorder | None,
        feed: Feed | None,
        batches: BatchDigest | None,
        total_steps: int,
        started: Fork | None,
        tracer: "Tracer | None" = None,
    ) -> None:
        self._recorder = recorder
        self._tracer = tracer
        self._fork = started
        self._feed = feed
        self._batches = batches
        self._total = total_steps
        self._step: Step | None = None
        self._tracing = ExitStack()
        self._stopping = self._done = False
        active = context.active()
        self._until = active.context.until if active is not None else None
        self.first_step = 1

    def begin(self) -> int:
        """Restore and verify the checkpoint from which this attempt starts, if there is one; return the first step.

        It is the run's newest, or another run's if this is a fork. Raises UsageError for a fork that has no step left
        to do, and for a second call.
        """
        if self._step is not None or self._done:
            raise UsageError(
                "session.begin() was called twice", hint="Call session.begin() once, before the first step."
            )
        if self._recorder is not None:
            if self._fork is not None:
                self._fork.prepare(self._total)
            self.first_step = self._recorder.begin() + 1
            if self._fork is not None:
                self._fork.apply()
        self._enter(self.first_step)
        return self.first_step

    @property
    def should_stop(self) -> bool:
        """True after the last step: the loop must end, because the script goes on after it."""
        return self._done

    def observe(self, batch: object) -> None:
        """Record a batch that the script read from a loader of its own: a digest of all values in it."""
        if self._batches is not None:
            self._batches.add(batch)

    def end_step(self, *, tokens: int = 0, **quantities: Any) -> None:
        """Record the step that has been done, with exact scalars by name, as `Step.record` does.

        Saves a checkpoint and fingerprints if they are due. Raises SystemExit after a request to stop, when the
        checkpoint is saved; UsageError before `begin()` and after the last step.
        """
        step = self._step
        if step is None:
            raise UsageError(
                "session.end_step() was called after the last step" if self._done else "the session has not begun",
                hint="Call session.begin() before the first step, and end the loop when session.should_stop is true.",
            )
        step.record(tokens=tokens, **quantities)
        self._tracing.close()
        last = self._stopping or step.number in (self._total, self._until)
        if self._recorder is not None:
            self._recorder.end_of_step(step, last)
        self._step = None
        if last:
            self._done = True
        else:
            self._enter(step.number + 1)

    def steps(self) -> Iterator[Step]:
        """Yield each remaining step once. A step is recorded when the loop's body has ended. Begins as `begin()`."""
        self.begin()
        while self._step is not None:
            step = self._step
            try:
                yield step
            except GeneratorExit:
                self.leave()
                raise
            self.end_step()

    def record(self, **quantities: Any) -> None:
        """Record exact scalars of the present step by name, as `Step.record` does."""
        if self._step is not None:
            self._step.record(**quantities)

    def enter_phase(self, name: str) -> None:
        """Be in a phase of the present step from now on, for a framework that has hooks; "step" ends the phase."""
        if self._step is not None and self._recorder is not None:
            self._recorder.phases.enter(name, self._step.number - 1)

    def leave(self) -> None:
        """Record that the loop was left inside a step, without a checkpoint."""
        self._tracing.close()
        if self._recorder is not None and self._step is not None:
            self._recorder.left(self._step)

    def _enter(self, number: int) -> None:
        """Begin a step, unless all are done."""
        if number > self._total:
            self._done = True
            return
        recorder = self._recorder
        phases = recorder.phases if recorder is not None else None
        self._step = Step(number, self._feed, recorder is not None, phases)
        if self._tracer is not None:
            self._tracing.enter_context(self._tracer.trace_step(number))

    def stop(self) -> None:
        """Make the current step the last, with its checkpoint; call this on all ranks in the same step."""
        self._stopping = True
