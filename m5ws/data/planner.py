"""Plans of batches: arithmetic in the process of a rank, without torch.

A plan contains the samples of this rank in the next batch of all ranks. Files that soon come are fetched ahead.

Invariant: `Planner.position` is the position after the last planned batch, and equal on all ranks.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import partial
from itertools import islice
from math import lcm
from typing import Any, NamedTuple

import blake3
import msgspec

from m5ws.data.source import Piece
from m5ws.data.stream import Cursor, Stream
from m5ws.errors import M5Error
from m5ws.records.sample_ids import Range

_AHEAD = 2
"""Windows whose files are fetched ahead, from the window that is read on. All ranks need all files of a window, but for
a batch that is wider than a window: then the files of this rank's part are fetched.
"""


class Batch(NamedTuple):
    """A planned batch: the source and the pieces of each sample of this rank."""

    samples: list[tuple[int, list[Piece]]]


class Measure(NamedTuple):
    """A file whose lengths a later batch needs."""

    source: int
    file: int


class _After(NamedTuple):
    """The position after a batch, and the ranges of each source in the batch."""

    state: dict[str, Any]
    ranges: dict[str, list[Range]]


class Planner:
    """Plans batches: the samples of each batch, and the position after it. It never refers to the iterator of the
    workers: in a circle with it, workers would wait for the end of the process.
    """

    def __init__(self, streams: list[Stream], batch_size: int, rank: int, world: int) -> None:
        self.streams, self._batch_size = streams, batch_size
        self._weights = _integers([stream.shards.source.weight for stream in streams])
        self._start, self._size = rank * batch_size // world, batch_size // world
        self._orders = [_order(stream) for stream in streams]
        self._by_sample = [_is_wide(stream, batch_size) for stream in streams]
        self._ahead: _Ahead | None = None
        self.samples = 0
        """Samples planned by now, of all ranks."""
        self.after: deque[_After] = deque()
        """The positions after the batches that are planned and not handed out."""

    def plans(self, threads: int) -> Iterator[Batch | Measure]:
        """Yield the plan of each batch after the position, and before it the measurements of files that come soon."""
        self._ahead = ahead = _Ahead(threads)
        announced: list[set[int]] = [set() for _ in self.streams]
        try:
            while True:
                for number, stream in enumerate(self.streams):
                    if self._by_sample[number]:
                        continue
                    coming = [file for window in islice(stream.upcoming(), _AHEAD) for file in window]
                    files = [file for file in coming if file not in announced[number]]
                    for file in files:
                        ahead.put(partial(stream.shards.fetch, file))
                    if stream.shards.measures:
                        yield from (Measure(number, file) for file in files)
                    announced[number] = set(coming)
                samples, ranges = self.choose()
                for source, file in {(source, piece.file) for source, pieces in samples for piece in pieces}:
                    if self._by_sample[source]:
                        ahead.put(partial(self.streams[source].shards.fetch, file))
                self.after.append(_After(self.position(), ranges))
                yield Batch(samples)
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
        return {"samples": self.samples, "sources": sources, "weights": sum(self._weights)}

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
            # A claim is a part of a sample, in units of the sum of the weights.
            stream.cursor.credit = round(Fraction(stream.cursor.credit * sum(self._weights), state["weights"]))
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


def _is_wide(stream: Stream, batch_size: int) -> bool:
    """Return True if a batch is wider than a window: then a rank needs a part of the window's files alone."""
    files = len(stream.shards.index.counts)
    return not stream.shards.measures and stream.order.samples * stream.shards.source.window < batch_size * files


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
