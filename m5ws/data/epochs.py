"""A loader in the place of a framework's own: a torch DataLoader, or a `datasets.IterableDataset`.

Both have the loader as `m5ws_loader`, so a session and the adapters of frameworks find its position and its samples.

Invariant: an iteration begins at the start of an epoch, but the first iteration after `leave_out`.
"""

import importlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset

from m5ws.errors import UsageError


class Batches(Protocol):
    """The methods of `m5ws.data.Loader` that are needed here."""

    batch_size: int
    steps_per_epoch: int | None

    @property
    def epoch(self) -> int: ...
    @property
    def done(self) -> int: ...
    @property
    def is_at_end(self) -> bool: ...
    def set_epoch(self, epoch: int) -> None: ...
    def rewind(self) -> None: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...


class Epochs(DataLoader[Any]):
    """A loader in the place of a torch DataLoader. Its batches contain the samples of this rank alone."""

    def __init__(self, loader: Batches) -> None:
        self.m5ws_loader = loader
        self._batches = _OneEpoch(loader)
        super().__init__(self._batches, batch_size=None, collate_fn=_unchanged, generator=torch.Generator())

    def set_epoch(self, epoch: int) -> None:
        self.m5ws_loader.set_epoch(epoch)

    def leave_out(self, position: Mapping[str, Any]) -> None:
        """Let the next iteration have None for each batch of its epoch before a position, and read none of them.

        For frameworks that leave out batches when they resume.
        """
        self._batches.leave_out(position)


def iterable_dataset(loader: Batches) -> Any:
    """Return a loader as a `datasets.IterableDataset`, whose examples are the batches of an epoch. Raises ImportError.

    https://huggingface.co/docs/datasets/package_reference/main_classes#datasets.IterableDataset.from_generator
    """
    batches = _OneEpoch(loader)
    dataset = importlib.import_module("datasets").IterableDataset.from_generator(lambda: iter(batches))
    dataset.m5ws_loader = loader
    return dataset


class _OneEpoch(IterableDataset[Any]):
    """The batches of an epoch: of the present epoch again if the loader is inside it."""

    def __init__(self, loader: Batches) -> None:
        if loader.steps_per_epoch is None:
            raise UsageError(
                "a framework reads epochs, and the loader has none",
                hint="Give the batches of an epoch: Loader(…, steps_per_epoch=…).",
            )
        self._loader = loader
        self._left_out: int | None = None
        self.set_epoch = loader.set_epoch

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        # At the first batch: a framework may make iterators that it does not read.
        if self._left_out is None:
            self._begin_epoch()
        left_out, self._left_out = self._left_out or 0, None
        yield from itertools.repeat(None, left_out)
        yield from self._loader

    def leave_out(self, position: Mapping[str, Any]) -> None:
        loader = self._loader
        loader.load_state_dict(position)
        self._end_epoch()
        self._left_out = loader.done // loader.batch_size

    def _begin_epoch(self) -> None:
        self._end_epoch()
        if self._loader.done:
            self._loader.rewind()

    def _end_epoch(self) -> None:
        # A framework that counts batches does not ask for the end of the epoch that it has read.
        if self._loader.is_at_end:
            self._loader.set_epoch(self._loader.epoch + 1)


def _unchanged(batch: Any) -> Any:
    return batch
