"""The loader of a training: its batches are the same for any number of ranks and workers, and its position is a record.

    loader = m5ws.data.Loader(m5ws.data.Source(dataset="data/web", length=1024, extra=1), batch_size=512, workers=4)
    session = m5ws.session(model, optimizer, loader=loader, total_steps=10_000)

The process of the rank plans batches (`planner`). Worker processes of torch's DataLoader fetch files, decode
samples and collate them, and return batches in shared memory.

Invariant: `state_dict` is the position after the last batch that was handed out, and equal on all ranks.
"""

import os
import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate
from torch.utils.data import Dataset as MapDataset

from m5ws.data.counting import Home
from m5ws.data.epochs import Epochs, iterable_dataset
from m5ws.data.kept import KeptFiles
from m5ws.data.planner import Batch, Measure, Planner
from m5ws.data.source import Shards, Source
from m5ws.data.stream import Stream
from m5ws.errors import UsageError
from m5ws.records import sample_ids
from m5ws.records.ledger import OtherLoader
from m5ws.records.sample_ids import Range, format_sources
from m5ws.training.runtime import context

_DESCRIBED = ("length", "extra", "pack", "window", "shuffle", "weight")
"""Fields of a source in the description of a loader."""


class Loader:
    """Batches of one source, or of a mixture by weight, without an end. An iteration ends after `steps_per_epoch`.

    - `batch_size`: samples of a step of all ranks together; each rank has its consecutive part.
    - `seed`: of the order; the run's seed, or 0. `workers`: processes that decode; without them the rank decodes.
    - `rank`, `world`: of the run, or of `torch.distributed`. `collate`: makes a batch from a list of samples.
    - `steps_per_epoch`: for one source without packing and `keep`, its samples / batch_size, rounded up. A mixture has
      no epoch unless it is given. Each source has its own epochs, and a batch may contain the end of an epoch and the
      start of the next epoch.
    - `prefetch`: batches that each worker makes ahead. `threads`: threads of this process that fetch files ahead.
    - `without`: paths of files or data sets whose samples are left out; in a fork, the paths of `--without`.
    - `cache`: folder of indexes, and of the lengths that a run measures; the run's cache.
    - `start_method`: of the workers.

    The DataLoader inside has a generator of its own, so reading draws nothing from the global generators. An
    iteration goes on at the position, also after `break`.
    """

    elastic = True

    def __init__(
        self,
        sources: Source | Sequence[Source],
        *,
        batch_size: int,
        seed: int | None = None,
        workers: int = 0,
        rank: int | None = None,
        world: int | None = None,
        steps_per_epoch: int | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
        prefetch: int = 2,
        threads: int = 4,
        without: Sequence[str] | None = None,
        cache: str | Path | None = None,
        start_method: str | None = None,
    ) -> None:
        active = context.active()
        spec = active.context.spec if active is not None else None
        self.seed = seed if seed is not None else (getattr(spec, "seed", None) or 0)
        self.batch_size, self.workers = batch_size, workers
        self.rank, self.world = _ranks(rank, world)
        if batch_size < 1 or batch_size % self.world:
            raise UsageError(f"batch_size={batch_size} is of all ranks together, and there are {self.world} ranks")
        self._without = tuple(without if without is not None else () if spec is None else spec.without)
        root, limit = (Path(cache), None) if cache is not None else _cache(active) or (self._make_folder(), None)
        # Only a run pins its code and arguments. Ranks of a node share the lengths, and so does a resume.
        own = (root, limit, f"run-{active.context.run}/") if active is not None else (self._make_folder(),)
        listed = [sources] if isinstance(sources, Source) else list(sources)
        streams = [self._open(item, KeptFiles(root, limit), KeptFiles(*own)) for item in listed]
        if len({stream.shards.name for stream in streams}) < len(streams):
            raise UsageError("two sources of a loader have one name", hint="Name each source: Source(name=…).")
        if steps_per_epoch is None and len(streams) == 1 and not streams[0].shards.measures:
            steps_per_epoch = ceil(streams[0].documents / batch_size)
        self.steps_per_epoch = steps_per_epoch
        self._plan = Planner(streams, batch_size, self.rank, self.world)
        self._tasks = _Tasks([stream.shards for stream in streams], collate)
        self._threads = threads
        self._options: dict[str, Any] = {"num_workers": workers}
        if workers:
            self._options |= {"prefetch_factor": prefetch, "multiprocessing_context": start_method}
        self.epoch = 0
        self._state = self._began = self._plan.position()
        self._inner: Iterator[Any] | None = None
        self._handed_out: deque[tuple[dict[str, Any], dict[str, list[Range]]]] = deque()
        self._consumed: list[dict[str, list[Range]]] = []  # also of batches before another epoch was begun
        self._is_recorded = False
        """True if a session records the samples, or if the run has an event that no session does."""

    # --- batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.is_at_end:
            self.set_epoch(self.epoch + 1)
            raise StopIteration
        if self._inner is None:
            if not self._is_recorded and (active := context.active()) is not None:
                self._is_recorded = True
                active.emit(OtherLoader, datasets=tuple(stream.shards.dataset.name for stream in self._plan.streams))
            # The workers are forked before the threads start.
            plans: Any = self._plan.plans(self._threads)
            generator = torch.Generator().manual_seed(self.seed % 2**63)
            inside: DataLoader[Any] = DataLoader(
                self._tasks, sampler=plans, batch_size=None, collate_fn=_unchanged, generator=generator, **self._options
            )
            self._inner = iter(inside)
        made = None
        while made is None:
            made = next(self._inner)
        after = self._plan.after.popleft()
        self._state = after.state
        self._handed_out.append((self.state_dict(), after.ranges))
        self._consumed.append(after.ranges)
        return made[0]

    def __len__(self) -> int:
        """Return the batches of an epoch. Raises TypeError if the loader has no epoch."""
        if self.steps_per_epoch is None:
            raise TypeError("a loader without steps_per_epoch has no length")
        return self.steps_per_epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, unless the loader is in this epoch already. Raises UsageError."""
        if epoch == self.epoch:
            return
        if self.steps_per_epoch is None:
            raise UsageError("the loader has no epochs", hint="Give the batches of an epoch: steps_per_epoch=….")
        if epoch != self.epoch + 1 or not self.is_at_end:
            # A mixture, and a source with `keep` or packing, plans all batches before the epoch.
            self._forget()
            self._plan.seek(epoch * self.steps_per_epoch * self.batch_size)
            self._state = self._plan.position()
        # Another batch size, or files that are left out, do not move this start.
        self.epoch, self._began = epoch, self._state

    @property
    def done(self) -> int:
        """The samples of the present epoch before the position."""
        return int(self._state["samples"] - self._began["samples"])

    @property
    def is_at_end(self) -> bool:
        """True if the present epoch has no more batch."""
        return bool(self.steps_per_epoch) and self.done >= (self.steps_per_epoch or 0) * self.batch_size

    def rewind(self) -> None:
        """Go to the start of the present epoch."""
        self._forget()
        self._plan.restore(self._began)
        self._state = self._plan.position()

    def dataloader(self) -> Epochs:
        """Return this loader as a torch DataLoader, for a framework: each iteration is an epoch from its start.

        Raises UsageError without `steps_per_epoch`.
        """
        return Epochs(self)

    def iterable_dataset(self) -> Any:
        """Return this loader as a `datasets.IterableDataset`, whose examples are the batches of an epoch.

        Raises UsageError without `steps_per_epoch`, ImportError without datasets.
        """
        return iterable_dataset(self)

    # --- position

    def state_dict(self) -> dict[str, Any]:
        return {**self._state, "epoch": self.epoch, "began": self._began}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position. A source that the state lacks starts at its beginning. Raises ValueError."""
        self._forget()
        self._consumed.clear()
        self._plan.restore(state)
        self.epoch, self._state, self._began = state["epoch"], self._plan.position(), state["began"]

    def take_consumed(self) -> dict[str, str]:
        """Return the ranges of positions of each source in the batches since the last call, of all ranks together."""
        taken, self._consumed = self._consumed, []
        self._handed_out.clear()
        return format_sources(taken)

    def take_batch(self) -> tuple[dict[str, Any], dict[str, list[Range]]]:
        """Return the position after the oldest batch that was handed out and not taken, and its ranges.

        For a framework that reads batches ahead of the step that consumes them.
        """
        self._consumed.clear()
        return self._handed_out.popleft()

    def description(self, put: Callable[[bytes], str]) -> dict[str, Any]:
        """Return all that the positions depend on, as plain data. `put` stores an index and returns its digest.

        `m5ws.data.order.sources_of` reads it. Whoever has it records the samples of this loader.
        """
        self._is_recorded = True
        return {
            "seed": self.seed,
            "batch_size": self.batch_size,
            "without": list(self._without),
            "sources": [
                {
                    "name": stream.shards.name,
                    "dataset": stream.shards.dataset.name,
                    "folder": stream.shards.dataset.folder,
                    "digest": stream.shards.dataset.digest,
                    "format": stream.shards.format,
                    "keep": stream.shards.source.keep is not None,
                    **{name: getattr(stream.shards.source, name) for name in _DESCRIBED},
                    "samples": stream.order.samples,
                    "index": put(stream.shards.index.encode()),
                }
                for stream in self._plan.streams
            ],
        }

    # --- surroundings

    def _open(self, source: Source, kept: KeptFiles, measured: KeptFiles) -> Stream:
        from m5ws.data.pinned import PinnedDataset, open_dataset

        dataset, active, home = source.dataset, context.active(), None
        if isinstance(dataset, str):
            dataset = open_dataset(dataset)
        if active is not None and isinstance(dataset, PinnedDataset) and dataset.is_remote:
            home = Home(active.repo, self.rank / self.world, [file.size_bytes for file in dataset.files])
        shards = Shards(source, dataset, kept, measured, self.seed, home)
        left_out = {
            number
            for number, path in enumerate(shards.index.files)
            if any(sample_ids.covers(item, os.path.join(dataset.folder, path)) for item in self._without)
        }
        return Stream(shards, left_out)

    def _make_folder(self) -> Path:
        """Make a folder that exists as long as this loader."""
        folder = tempfile.mkdtemp(prefix="m5ws-samples-")
        weakref.finalize(self, _remove, folder, os.getpid())
        return Path(folder)

    def _forget(self) -> None:
        """Forget the batches that were made ahead."""
        self._inner = None
        self._handed_out.clear()


class _Tasks(MapDataset[Any]):
    """The work of a worker, as a data set whose indices are plans."""

    def __init__(self, shards: list[Shards], collate: Callable[[list[Any]], Any]) -> None:
        self._shards, self._collate = shards, collate

    def __getitem__(self, task: Batch | Measure) -> tuple[Any] | None:
        if isinstance(task, Measure):
            self._shards[task.source].lengths(task.file)
            return None
        made: list[Any] = [None] * len(task.samples)
        # In the order of the files, so that a row group or a page is read once.
        for number in sorted(range(len(made)), key=lambda number: (task.samples[number][0], task.samples[number][1])):
            source, pieces = task.samples[number]
            made[number] = self._shards[source].sample(pieces)
        return (self._collate(made),)


def _remove(folder: str, process: int) -> None:
    """Remove a folder of a process, but not from a forked worker."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _cache(active: context.ActiveRank | None) -> tuple[Path, int] | None:
    """Return the directory of the run's cache and its limit in bytes, if there is one."""
    if active is None or not (active.context.files or active.context.copies):
        return None
    orders = active.context
    return (Path(orders.files), orders.files_bytes) if orders.files else (Path(orders.copies), orders.copies_bytes)


def _ranks(rank: int | None, world: int | None) -> tuple[int, int]:
    active, distributed = context.active(), torch.distributed
    known = (0, 1)
    if active is not None:
        known = (active.rank, active.world)
    elif distributed.is_available() and distributed.is_initialized():
        known = (distributed.get_rank(), distributed.get_world_size())
    return known[0] if rank is None else rank, known[1] if world is None else world


def _unchanged(batch: Any) -> Any:
    return batch
