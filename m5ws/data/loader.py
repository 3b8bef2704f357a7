"""The loader of a training: its batches are the same for any number of ranks and workers, and its position is a record.

    loader = m5ws.data.Loader(m5ws.data.Source(dataset="data/web", length=1024, extra=1), batch_size=512, workers=4)
    session = m5ws.session(model, optimizer, loader=loader, total_steps=10_000)

A batch is planned by arithmetic in the process of the rank. The workers, which are those of torch's DataLoader, fetch
files, decode samples and collate them, and return batches in shared memory.

Invariant: `state_dict` is the position after the last batch that was handed out, and equal on all ranks.
"""

import os
import queue
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import partial
from itertools import islice
from math import ceil, lcm
from pathlib import Path
from typing import Any, NamedTuple

import blake3
import msgspec
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate
from torch.utils.data import Dataset as MapDataset

from m5ws.data.order import Range, format_ranges
from m5ws.data.source import Piece, Shards, Source
from m5ws.data.stream import Cursor, Stream
from m5ws.errors import M5Error, UsageError
from m5ws.records import sample_ids
from m5ws.training.runtime import context

_AHEAD = 2
"""Windows whose files are fetched ahead, from the window that is read on."""


class _Batch(NamedTuple):
    """A planned batch: the source and the pieces of each sample of this rank."""

    samples: list[tuple[int, list[Piece]]]


class _Measure(NamedTuple):
    """A file whose lengths a later batch needs."""

    source: int
    file: int


class _After(NamedTuple):
    """The position after a batch, and the ranges of each source in the batch."""

    state: dict[str, Any]
    ranges: dict[str, list[Range]]


class Loader:
    """Batches of one source, or of a mixture by weight, without an end. An iteration ends after `steps_per_epoch`.

    - `batch_size`: samples of a step of all ranks together; each rank has its consecutive part.
    - `seed`: of the order; the run's seed, or 0. `workers`: processes that decode; without them the rank decodes.
    - `rank`, `world`: of the run, or of `torch.distributed`. `collate`: makes a batch from a list of samples.
    - `steps_per_epoch`: for one source without packing and `keep`, its samples / batch_size, rounded up. A mixture has
      no epoch unless it is given. Each source has its own epochs, and a batch may contain the end of an epoch and the
      start of the next epoch.
    - `prefetch`: batches that each worker makes ahead. `threads`: threads of this process that fetch files ahead.
    - `without`: paths of files or data sets whose samples are left out; those of a fork with `--without`.
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
        self._own = own = tempfile.TemporaryDirectory(prefix="m5ws-samples-")
        folder = Path(cache) if cache is not None else _cache(active) or Path(own.name)
        # Only a run pins its code and arguments. Ranks of a node share the lengths, and so does a resume.
        measured = folder / f"run-{active.context.run}" if active is not None else Path(own.name)
        listed = [sources] if isinstance(sources, Source) else list(sources)
        streams = [self._open(item, folder, measured) for item in listed]
        if len({stream.shards.name for stream in streams}) < len(streams):
            raise UsageError("two sources of a loader have one name", hint="Name each source: Source(name=…).")
        if steps_per_epoch is None and len(streams) == 1 and not streams[0].shards.measures:
            steps_per_epoch = ceil(streams[0].documents / batch_size)
        self.steps_per_epoch = steps_per_epoch
        self._plan = _Planner(streams, _integers([item.weight for item in listed]), batch_size, self.rank, self.world)
        self._tasks = _Tasks([stream.shards for stream in streams], collate)
        self._threads = threads
        self._options: dict[str, Any] = {"num_workers": workers}
        if workers:
            self._options |= {"prefetch_factor": prefetch, "multiprocessing_context": start_method}
        self.epoch = 0
        self._state = self._plan.position()
        self._inner: Iterator[Any] | None = None
        self._consumed: dict[str, list[Range]] = {}

    # --- batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.steps_per_epoch and self._state["samples"] >= (self.epoch + 1) * self.steps_per_epoch * self.batch_size:
            self.epoch += 1
            raise StopIteration
        if self._inner is None:
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
        for name, ranges in after.ranges.items():
            self._consumed.setdefault(name, []).extend(ranges)
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
        self.rewind(epoch)

    def rewind(self, epoch: int) -> None:
        """Go to the start of an epoch. A mixture, and a source with `keep` or packing, plans all batches before it."""
        self._forget()
        self._plan.seek(epoch * (self.steps_per_epoch or 0) * self.batch_size)
        self.epoch, self._state = epoch, self._plan.position()

    def dataloader(self) -> "Epochs":
        """Return this loader as a torch DataLoader, for a framework: each iteration is an epoch from its start."""
        return Epochs(self)

    # --- position

    def state_dict(self) -> dict[str, Any]:
        return {**self._state, "epoch": self.epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position. A source that the state lacks starts at its beginning. Raises ValueError."""
        self._forget()
        self._plan.restore(state)
        self.epoch, self._state = state["epoch"], self._plan.position()

    def take_consumed(self) -> dict[str, str]:
        """Return the ranges of positions of each source in the batches since the last call, of all ranks together."""
        taken, self._consumed = self._consumed, {}
        return {name: format_ranges(ranges) for name, ranges in taken.items() if ranges}

    def description(self, put: Callable[[bytes], str]) -> dict[str, Any]:
        """Return all that the positions depend on, as plain data. `put` stores an index and returns its digest.

        `m5ws.data.order.sources_of` reads it.
        """
        return {
            "seed": self.seed,
            "batch_size": self.batch_size,
            "without": list(self._without),
            "sources": [
                {
                    "name": stream.shards.name,
                    "folder": stream.shards.dataset.folder,
                    "digest": stream.shards.dataset.digest,
                    "format": stream.shards.format,
                    "length": stream.shards.source.length,
                    "extra": stream.shards.source.extra,
                    "pack": stream.shards.source.pack,
                    "keep": stream.shards.source.keep is not None,
                    "window": stream.shards.source.window,
                    "shuffle": stream.shards.source.shuffle,
                    "weight": stream.shards.source.weight,
                    "samples": stream.order.samples,
                    "index": put(stream.shards.index.encode()),
                }
                for stream in self._plan.streams
            ],
        }

    # --- surroundings

    def _open(self, source: Source, folder: Path, measured: Path) -> Stream:
        dataset = source.dataset
        if isinstance(dataset, str):
            from m5ws.data.pinned import open_dataset

            dataset = open_dataset(dataset)
        shards = Shards(source, dataset, folder, measured, self.seed)
        left_out = {
            number
            for number, path in enumerate(shards.index.files)
            if any(sample_ids.covers(item, os.path.join(dataset.folder, path)) for item in self._without)
        }
        return Stream(shards, left_out)

    def _forget(self) -> None:
        """Forget the batches that were made ahead."""
        self._inner = None
        self._consumed = {}


class Epochs(DataLoader[Any]):
    """A loader in the place of a torch DataLoader. Its batches are those of this rank already."""

    def __init__(self, loader: Loader) -> None:
        super().__init__(_OneEpoch(loader), batch_size=None, collate_fn=_unchanged, generator=torch.Generator())

    def set_epoch(self, epoch: int) -> None:
        self.dataset.set_epoch(epoch)  # type: ignore[attr-defined]


class _OneEpoch(IterableDataset[Any]):
    """The batches of an epoch: of the present epoch again if the loader is inside it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.set_epoch = loader.set_epoch

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        loader = self._loader
        # A framework that counts batches does not ask for the end of the epoch that it has read.
        if loader.state_dict()["samples"] == (loader.epoch + 1) * len(loader) * loader.batch_size:
            loader.set_epoch(loader.epoch + 1)
        if loader.state_dict()["samples"] != loader.epoch * len(loader) * loader.batch_size:
            loader.rewind(loader.epoch)
        return loader


class _Planner:
    """Plans batches: the samples of each batch, and the position after it. It never refers to the iterator of the
    workers: in a circle with it, workers would wait for the end of the process.
    """

    def __init__(self, streams: list[Stream], weights: list[int], batch_size: int, rank: int, world: int) -> None:
        self.streams, self._weights, self._batch_size = streams, weights, batch_size
        self._start, self._size = rank * batch_size // world, batch_size // world
        self._orders = [_order(stream) for stream in streams]
        self._ahead: _Ahead | None = None
        self.samples = 0
        """Samples planned by now, of all ranks."""
        self.after: deque[_After] = deque()
        """The positions after the batches that are planned and not handed out."""

    def plans(self, threads: int) -> Iterator[_Batch | _Measure]:
        """Yield the plan of each batch after the position, and before it the measurements of files that come soon."""
        self._ahead = ahead = _Ahead(threads)
        announced: list[set[int]] = [set() for _ in self.streams]
        try:
            while True:
                for number, stream in enumerate(self.streams):
                    coming = [file for window in islice(stream.upcoming(), _AHEAD) for file in window]
                    files = [file for file in coming if file not in announced[number]]
                    for file in files:
                        ahead.put(partial(stream.shards.fetch, file))
                    if stream.shards.measures:
                        yield from (_Measure(number, file) for file in files)
                    announced[number] = set(coming)
                samples, ranges = self.choose()
                self.after.append(_After(self.position(), ranges))
                yield _Batch(samples)
        finally:
            ahead.close()

    def choose(self) -> tuple[list[tuple[int, list[Piece]]], dict[str, list[Range]]]:
        """Take a batch of all sources; return this rank's part of the samples, and the ranges of the whole batch."""
        chosen = self._mix()
        taken = [stream.take(chosen.count(number)) for number, stream in enumerate(self.streams)]
        self.samples += self._batch_size
        at = [chosen[: self._start].count(number) for number in range(len(taken))]
        samples = []
        for source in chosen[self._start : self._start + self._size]:
            samples.append((source, taken[source].pieces(at[source])))
            at[source] += 1
        named = zip(self.streams, taken, strict=True)
        return samples, {stream.shards.name: item.ranges for stream, item in named if item.ranges}

    def position(self) -> dict[str, Any]:
        """Return the position after the batches that are planned."""
        sources = {
            stream.shards.name: {**msgspec.structs.asdict(stream.cursor), "order": order}
            for stream, order in zip(self.streams, self._orders, strict=True)
        }
        return {"samples": self.samples, "sources": sources}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a position. Raises ValueError if a source has another order."""
        saved = [state["sources"].get(stream.shards.name, {}) for stream in self.streams]
        for stream, item, order in zip(self.streams, saved, self._orders, strict=True):
            if item.get("order", order) != order:
                raise ValueError(
                    f"the order of the source {stream.shards.name} has changed: another seed, window, length, or other "
                    "files, so its position is another sample"
                )
        self.reset()
        for stream, item in zip(self.streams, saved, strict=True):
            stream.cursor = Cursor(**{key: value for key, value in item.items() if key != "order"})
        self.samples = state["samples"]

    def seek(self, samples: int) -> None:
        """Go to a number of samples after the start."""
        self.reset()
        plain = len(self.streams) == 1 and self.streams[0].is_plain
        for stream in self.streams:
            stream.seek(samples if plain else 0)
        self.samples = samples if plain else 0
        while self.samples < samples:
            self.choose()

    def reset(self) -> None:
        """Forget the batches that were planned; wait for the files that are fetched now, as workers are forked next."""
        self.after.clear()
        if self._ahead is not None:
            self._ahead.join()

    def _mix(self) -> list[int]:
        """Return the source of each sample of a batch: always a source with the largest claim."""
        streams, weights = self.streams, self._weights
        if len(streams) == 1:
            return [0] * self._batch_size
        chosen, total, numbers = [], sum(weights), range(len(streams))
        claims = [stream.cursor.credit for stream in streams]
        for _ in range(self._batch_size):
            claims = [claim + weight for claim, weight in zip(claims, weights, strict=True)]
            best = max(numbers, key=claims.__getitem__)
            claims[best] -= total
            chosen.append(best)
        for stream, claim in zip(streams, claims, strict=True):
            stream.cursor.credit = claim
        return chosen


class _Tasks(MapDataset[Any]):
    """The work of a worker, as a data set whose indices are plans."""

    def __init__(self, shards: list[Shards], collate: Callable[[list[Any]], Any]) -> None:
        self._shards, self._collate = shards, collate

    def __getitem__(self, task: _Batch | _Measure) -> tuple[Any] | None:
        if isinstance(task, _Measure):
            self._shards[task.source].lengths(task.file)
            return None
        made: list[Any] = [None] * len(task.samples)
        # In the order of the files, so that a row group or a page is read once.
        for number in sorted(range(len(made)), key=lambda number: (task.samples[number][0], task.samples[number][1])):
            source, pieces = task.samples[number]
            made[number] = self._shards[source].sample(pieces)
        return (self._collate(made),)


class _Ahead:
    """Threads that fetch files ahead. An error is left to the worker that reads the file: it fetches it itself."""

    def __init__(self, threads: int) -> None:
        self._work: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._closed = False
        # A download does not delay the end of the process.
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def put(self, fetch: Callable[[], Any]) -> None:
        self._work.put(fetch)

    def close(self) -> None:
        self._closed = True
        for _ in self._threads:
            self._work.put(None)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (fetch := self._work.get()) is not None and not self._closed:
            with suppress(M5Error, OSError):
                fetch()


def _cache(active: Any) -> Path | None:
    """Return the folder of indexes and lengths in the run's cache, if there is one."""
    cache = active.context.files or active.context.copies if active is not None else ""
    return Path(cache) / "samples" if cache else None


def _ranks(rank: int | None, world: int | None) -> tuple[int, int]:
    active, distributed = context.active(), torch.distributed
    known = (0, 1)
    if active is not None:
        known = (active.rank, active.world)
    elif distributed.is_available() and distributed.is_initialized():
        known = (distributed.get_rank(), distributed.get_world_size())
    return known[0] if rank is None else rank, known[1] if world is None else world


def _order(stream: Stream) -> str:
    """Return a digest of all that the positions of a source depend on."""
    source, shards = stream.shards.source, stream.shards
    parts = (shards.seed, source.window, source.shuffle, source.length, source.extra, source.pack, shards.format)
    return blake3.blake3(msgspec.json.encode((parts, shards.digest))).hexdigest()[:16]


def _integers(weights: Sequence[float]) -> list[int]:
    """Return integers in the ratio of the weights, exactly as the decimals are written."""
    fractions = [Fraction(str(weight)) for weight in weights]
    scale = lcm(*(item.denominator for item in fractions))
    return [int(item * scale) for item in fractions]


def _unchanged(batch: Any) -> Any:
    return batch
