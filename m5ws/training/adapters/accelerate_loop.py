"""A loop with Accelerate: `for batch in m5ws.adapters.accelerate(accelerator, model, optimizer, loader, …)`.

The loop hands out the batches of a prepared loader, epoch after epoch, until the optimizer's last step. A step ends
when the loop asks for a batch after a batch that synchronised gradients, so gradients may be accumulated. A resume
leaves batches out by `skip_first_batches`. https://huggingface.co/docs/accelerate/package_reference/accelerator
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.utils.data import IterableDataset

from m5ws.training.adapters.training import Training, refuse
from m5ws.training.runtime import context
from m5ws.training.runtime.context import ActiveRank

_TYPES = ("NO", "MULTI_CPU", "MULTI_GPU")
_LOADERS = ("DataLoaderShard",)


def accelerate(
    accelerator: Any,
    model: Any,
    optimizer: Any,
    loader: Any,
    *,
    total_steps: int,
    scheduler: Any = None,
    state: Mapping[str, Any] | None = None,
) -> "Batches":
    """Return the batches of a training, which are recorded and resumed; all objects are prepared by `accelerator`.

    `state` holds more objects with `state_dict` and `load_state_dict`, and torch generators, by name. Raises
    Unsupported.
    """
    batches = Batches(accelerator, loader, total_steps)
    if (active := context.active()) is not None:
        batches.begin(active, model, optimizer, scheduler, state or {})
    return batches


class Batches:
    """The batches of a training with Accelerate, from the step with which it begins to its last one."""

    def __init__(self, accelerator: Any, loader: Any, total_steps: int) -> None:
        self._accelerator = accelerator
        self._loader = loader
        self._total = total_steps
        self._training: Training | None = None
        self._is_stopping = False
        self._is_first = True
        self.step = 0
        """Number of steps that are done."""
        self.epoch = 0
        """Number of the present epoch, from 0."""
        self._done = 0

    def record(self, **quantities: Any) -> None:
        """Record exact scalars of the present step by name: numbers, or tensors of one element."""
        if self._training is not None:
            self._training.record(quantities)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name a part of the present step that takes longer than a step: `with batches.phase("evaluation")`."""
        if self._training is not None:
            self._training.enter_phase(name)
        try:
            yield
        finally:
            if self._training is not None:
                self._training.enter_phase("step")

    def stop(self) -> None:
        """Make the present step the last step; call this on all ranks in the same step."""
        self._is_stopping = True

    def begin(self, active: ActiveRank, model: Any, optimizer: Any, scheduler: Any, state: Mapping[str, Any]) -> None:
        """Begin the session, and restore the checkpoint to resume; collective."""
        _refuse(self._accelerator, self._loader)
        self._training = training = Training(
            active, lambda: {"step": self.step, "epoch": self.epoch, "done": self._done}
        )
        scaler = self._accelerator.scaler
        is_over = training.begin(
            model,
            getattr(optimizer, "optimizer", optimizer),
            getattr(scheduler, "scheduler", scheduler),
            self._total,
            [self._loader],
            {**state, **({"scaler": scaler} if scaler is not None else {})},
        )
        if training.position is not None:
            counters = training.position["counters"]
            self.step, self.epoch, self._done = counters["step"], counters["epoch"], counters["done"]
        self._is_stopping = is_over

    def __iter__(self) -> Iterator[Any]:
        while not self._is_over:
            yield from self._batches_of_epoch()
            if not self._is_over:
                self.epoch, self._done = self.epoch + 1, 0

    @property
    def _is_over(self) -> bool:
        return self._is_stopping or self.step >= self._total

    def _batches_of_epoch(self) -> Iterator[Any]:
        """Yield the batches of the epoch that are not done, and end with the training."""
        training = self._training
        if training is not None:
            training.begin_epoch()
        loader = self._accelerator.skip_first_batches(self._loader, self._done) if self._done else self._loader
        loader.set_epoch(self.epoch)
        for batch in loader:
            if training is not None:
                training.refuse_draws()
                training.read(batch, is_first=self._is_first)
            self._done += 1
            try:
                yield batch
            except GeneratorExit:
                if training is not None:
                    training.leave()
                raise
            self._is_first = bool(self._accelerator.sync_gradients)
            self.step += self._is_first
            if self._is_first and self._is_over:
                if training is not None:
                    training.finish()
                return
            if training is not None:
                training.before_read()


def _refuse(accelerator: Any, loader: Any) -> None:
    """Raise Unsupported if a resume of the loop would not be exact."""
    kind, name = accelerator.distributed_type.name, type(loader).__name__
    modes = {
        "an IterableDataset, which has no position": isinstance(getattr(loader, "dataset", None), IterableDataset),
        f"the mode {kind}: m5ws.session() restores FSDP2 and DeepSpeed": kind not in _TYPES,
        f"a {name}: give it a DataLoader that accelerator.prepare() returned": name not in _LOADERS,
        "a loader with state_dict: m5ws.session(loader=…) restores its position": bool(
            getattr(loader, "use_stateful_dataloader", False)
        ),
    }
    refuse("Accelerate", modes)
