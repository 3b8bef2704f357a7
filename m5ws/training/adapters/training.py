"""A framework's training as a session: the rules that all adapters share.

A step is an optimizer step. It is recorded when the first batch of the next step has been read, so that evaluations,
logs and saves after it belong to it. A checkpoint has the framework's counters, the generators before the order of the
epoch was drawn, and the digest of that next batch. A resume repeats the epoch's order, leaves out the batches that were
done, and sets the generators of the checkpoint last.

Invariant: a resumed training begins with the batch that followed the checkpoint, or it is refused.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from m5ws.errors import UsageError
from m5ws.records import sample_ids
from m5ws.training import dataloader
from m5ws.training.checkpoint import checkpointing
from m5ws.training.runtime.context import ActiveRank
from m5ws.training.session.session import Session, session
from m5ws.training.state import plain_state, rng
from m5ws.training.state.plain_state import RestoreError

_SESSION = "Remove the line of the adapter: the script is then observed. Or write the loop with m5ws.session()."
_FORK = "`m5ws fork RUN` goes on with other data, as a run of its own."
_WORK = "{work}"
"""Stands for the work directory, whose path differs between attempts."""
_NESTED = ("sampler", "batch_sampler", "synchronized_generator")


class Unsupported(UsageError):
    """A mode of a framework in which a resume would not be exact."""

    hint = _SESSION


def refuse(framework: str, modes: Mapping[str, Any]) -> None:
    """Raise Unsupported if one of these modes is used."""
    for mode, is_used in modes.items():
        if is_used:
            raise Unsupported(f"the adapter of {framework} does not support {mode}")


def has_position(loader: Any) -> bool:
    """Return True for the DataLoader of a loader of m5ws.data, which is an IterableDataset with a position."""
    return hasattr(loader, "m5ws_loader") and hasattr(loader, "leave_out")


class Training:
    """The one training of a process that an adapter records. `position`: the resumed checkpoint's, if any.

    `reads_again`: a resume reads the batches of the epoch that were done, so that workers draw their numbers again.
    """

    reads_again = False

    recorded_rank: ActiveRank | None = None
    """The rank whose training has begun."""

    def __init__(self, active: ActiveRank, counters: Callable[[], Mapping[str, Any]]) -> None:
        if active.context.parent is not None and "data" in active.context.parent.restart:
            raise Unsupported("an adapter cannot restart the data (--restart data): its step decides the position")
        self._work = os.path.realpath(active.context.work_dir)
        self.position = _replaced(_load_position(active), _WORK, self._work)
        self._active = active
        self._counters = counters
        self._loader = _Position(self)
        self._session: Session
        self._next: str | None = None
        self._at_epoch: Mapping[str, Any] = {}
        self._before_read: Mapping[str, Any] | None = None
        self._draws_nothing = False
        self._saved: Mapping[str, Any] = {}
        self.is_open = False
        """True inside a step."""
        self._loss: torch.Tensor | None = None
        self._rate: Any = None

    def begin(
        self, model: Any, optimizer: Any, scheduler: Any, total_steps: int, loaders: Iterable[Any], state: Any
    ) -> bool:
        """Begin the session, and restore the checkpoint to resume; return True if no step is left; collective."""
        if Training.recorded_rank is self._active:
            raise Unsupported("an adapter records one training of a process, and this is the second training")
        Training.recorded_rank = self._active
        self._loader.hold(loaders, self.position)
        self._optimizer = optimizer[0] if isinstance(optimizer, list) else optimizer
        self._session = session(
            model, optimizer, scheduler=scheduler, loader=self._loader, total_steps=total_steps, state=state
        )
        self._session.begin()
        if self.position is not None:
            self._saved = rng.capture(self._loader.named)
        if self.is_complete:
            # No step follows that would see a request to stop.
            self._active.stop.finish()
        return self.is_complete or self._session.should_stop

    @property
    def is_complete(self) -> bool:
        """True if the checkpoint to resume was made after the last step, which the framework may choose."""
        return self.position is not None and self.position["next"] is None and self._active.context.parent is None

    def begin_epoch(self) -> None:
        """Note the generators from which the order of an epoch is drawn; in a resume's first epoch, set them."""
        if self.position is not None and not self._at_epoch:
            rng.restore(self.position["at_epoch"], self._loader.named)
        self._at_epoch, self._before_read = rng.read(self._loader.named), None

    def before_read(self) -> None:
        """Note the generators before the next batch is read."""
        self._before_read = rng.read(self._loader.named)

    def continued(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Return an iterator whose first batch, the checkpoint's next, is read with the generators as they were."""
        position = self.position or {}
        before = position.get("before_read") or rng.capture(self._loader.named)

        def read() -> Iterator[Any]:
            rng.restore(before, self._loader.named)
            # By `next` alone: Lightning's iterator would begin the epoch again.
            yield from iter(partial(next, iterator), None)

        return read()

    def refuse_draws(self) -> None:
        """Raise Unsupported if the first batch that is read after `before_read` has drawn from a global generator."""
        before, self._before_read = self._before_read, None
        if before is None or self._draws_nothing:
            return
        after = rng.capture({})
        self._draws_nothing = after == rng.encode({name: before[name] for name in after})
        if not self._draws_nothing:
            raise Unsupported(
                "reading a batch draws random numbers in this process, so a resume would read other batches",
                hint="Draw from a generator that is seeded by the example's index. " + _SESSION,
            )

    def read(self, batch: Any, *, is_first: bool) -> None:
        """Record a batch that was read. With the first batch of a step, the step before it ends."""
        digest = dataloader.digest(batch)
        if is_first:
            self._next = digest
            if self.is_open:
                self._end_step()
            elif self.position is not None:
                self._check(digest)
                rng.restore(self._saved, self._loader.named)
            if self._session.should_stop:
                if self._active.context.until is not None:
                    raise SystemExit(0)  # A replay of some steps ends here.
                raise Unsupported("the framework trains more steps than it announced when it began")
            self.is_open = True
            self._rate = self._optimizer.param_groups[0]["lr"]
        self._loader.take_batch()
        if self.is_open:
            self._session.observe(digest)

    def leave(self) -> None:
        """Record that the loop was left inside a step."""
        if self.is_open:
            self.is_open = False
            self._session.leave()

    def add_loss(self, loss: torch.Tensor) -> None:
        """Add a batch's part of the step's loss."""
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()

    def enter_phase(self, name: str) -> None:
        """Be in a phase from now on, such as an evaluation; "step" ends the phase."""
        if self.is_open:
            self._session.enter_phase(name)

    def record(self, quantities: Mapping[str, Any]) -> None:
        """Record exact scalars of the present step."""
        self._session.record(**quantities)

    def finish(self) -> None:
        """Record the last step, which no batch follows. Steps may be left that the framework did not want."""
        if self.is_open:
            self._next, self.is_open = None, False
            self._session.stop()
            self._end_step()

    def state(self) -> dict[str, Any]:
        """Return the position after the step that ends now."""
        before = self._before_read
        return {
            "counters": _replaced(dict(self._counters()), self._work, _WORK),
            "at_epoch": rng.encode(self._at_epoch),
            "before_read": None if before is None else rng.encode(before),
            "next": self._next,
            "samples": self._loader.samples,
        }

    def _end_step(self) -> None:
        quantities = {"loss": self._loss, "lr": self._rate}
        self._loss = None
        self._session.end_step(**{name: value for name, value in quantities.items() if value is not None})

    def _check(self, digest: str) -> None:
        """Raise RestoreError unless the first batch followed the checkpoint. A fork may change the batch."""
        assert self.position is not None
        if self._active.context.parent is None and digest != self.position["next"]:
            raise RestoreError(
                "the data does not continue where the checkpoint was made: the next batch differs",
                hint="The order or the examples of the loader depend on more than its seeds, such as random numbers of "
                "worker processes. " + _FORK,
            )


class _Position:
    """The position of a training, as the data loader of its session.

    `samples` is the position of a loader of m5ws.data after the batches that the steps read; None for other loaders.
    """

    num_workers = 0

    def __init__(self, training: Training) -> None:
        self._training = training
        self.named: dict[str, torch.Generator] = {}
        self.generator: torch.Generator | None = None
        self.sampler = SimpleNamespace(generator=None)
        self.samples: dict[str, Any] | None = None
        self._own: Any = None
        self._consumed: list[Any] = []

    def hold(self, loaders: Iterable[Any], position: Mapping[str, Any] | None) -> None:
        """Take the generators and the number of workers of the framework's loaders. Raises Unsupported.

        A loader of m5ws.data goes to the position, and reads none of the batches that the framework leaves out.
        """
        loaders = list(loaders)
        own = [loader for loader in loaders if has_position(loader)]
        if len(own) > 1:
            raise Unsupported("more than one loader of m5ws.data: give one loader a mixture of sources")
        if own:
            self._own = own[0].m5ws_loader
            self.samples = self._own.state_dict()
        if own and position is not None and position.get("samples") is not None:
            self.samples = position["samples"]
            try:
                own[0].leave_out(self.samples)
            except ValueError as error:
                raise RestoreError(f"the data loader does not accept its position: {error}", hint=_FORK) from error
        found = list({id(item): item for loader in loaders for item in _generators(loader)}.values())
        if len(found) > len(dataloader.Feed.NAMES):
            raise Unsupported(f"the data loaders have {len(found)} generators of their own")
        self.named = dict(zip(dataloader.Feed.NAMES, found, strict=False))
        self.generator = self.named.get("loader")
        self.sampler = SimpleNamespace(generator=self.named.get("sampler"))
        self.num_workers = max((int(loader.num_workers) for loader in loaders if self._loses(loader)), default=0)

    def take_batch(self) -> None:
        """Take the position and the samples of the batch that a step reads: the framework may have read ahead."""
        if self._own is not None:
            self.samples, ranges = self._own.take_batch()
            self._consumed.append(ranges)

    def take_consumed(self) -> dict[str, str]:
        """Return the samples of a loader of m5ws.data that the step has consumed."""
        consumed, self._consumed = self._consumed, []
        return sample_ids.format_sources(consumed)

    def description(self, put: Callable[[bytes], str]) -> dict[str, Any] | None:
        """Return the description of the order of a loader of m5ws.data; None for other loaders."""
        return self._own.description(put) if self._own is not None else None

    def _loses(self, loader: Any) -> bool:
        """Return True if the generators in a loader's workers differ from an uninterrupted training."""
        return not self._training.reads_again or bool(getattr(loader, "persistent_workers", False))

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        return self._training.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The framework has read `Training.position` before it began."""


def _generators(item: Any) -> Iterable[torch.Generator]:
    """Yield the generators of a loader, of its samplers, and of theirs."""
    if isinstance(item, torch.Generator):
        yield item
    elif item is not None:
        yield from _generators(getattr(item, "generator", None))
        for name in _NESTED:
            yield from _generators(getattr(item, name, None))


def _replaced(value: Any, old: str, new: str) -> Any:
    """Return nested counters with `new` in the place of a text in all strings."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, dict):
        return {_replaced(key, old, new): _replaced(item, old, new) for key, item in value.items()}
    return [_replaced(item, old, new) for item in value] if type(value) is list else value


def _load_position(active: ActiveRank) -> dict[str, Any] | None:
    """Return the position in the checkpoint from which this attempt resumes. Raises RestoreError."""
    if active.context.resume is None:
        return None
    position = plain_state.decode(checkpointing.load_rank(active).get("feed", {}).get("loader"))
    if not isinstance(position, dict) or "counters" not in position:
        raise RestoreError(
            "the checkpoint was not made by this adapter, or by another number of ranks",
            hint="Resume with the script and the number of ranks of the checkpoint.",
        )
    return position
