"""The order of the samples of a source: a function of seed, epoch, and the numbers of samples in its files.

An order has positions 0 … samples - 1 in each epoch. The files are permuted, and then the samples inside each window of
consecutive files: a shuffle buffer without a state. The keys of the permutations are hashes of (seed, epoch, file,
row), so the order does not depend on the version of NumPy.

Invariant: nothing depends on the ranks, the workers, or earlier calls. No file is read, and torch is not imported.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from m5ws.data.recent import Recent
from m5ws.records.sample_ids import Range

Array = np.ndarray[Any, np.dtype[Any]]

_KEPT_EPOCHS, _KEPT_WINDOWS = 2, 4
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BITS = 2**64


class Index(msgspec.Struct, frozen=True):
    """The files with samples of a data set, by their paths in it, and the number of samples in each file."""

    files: tuple[str, ...]
    counts: tuple[int, ...]

    def encode(self) -> bytes:
        """Return the content of an index file: compressed JSON, the same bytes for the same index."""
        return zlib.compress(msgspec.json.encode(self), 6)

    @staticmethod
    def decode(content: bytes) -> "Index":
        """Return the index with this content. Raises ValueError."""
        try:
            return msgspec.json.decode(zlib.decompress(content), type=Index)
        except (zlib.error, msgspec.DecodeError) as error:
            raise ValueError(f"not an index of samples: {error}") from error


class Order:
    """The order of the samples in files with `counts` samples. `window`: number of files that are shuffled together.

    An order without `shuffle` has the files, and the rows of each file, as they come. Threads may share an order.
    """

    def __init__(self, counts: Sequence[int], *, seed: int, window: int, shuffle: bool = True) -> None:
        self._counts = np.asarray(counts, dtype=np.int64)
        self._seed, self._window, self._shuffle = seed, window, shuffle
        self._epochs: Recent[tuple[Array, Array]] = Recent(_KEPT_EPOCHS)
        self._windows: Recent[tuple[Array, Array]] = Recent(_KEPT_WINDOWS)
        self.samples = int(self._counts.sum())
        """The number of samples in an epoch."""

    def locate(self, epoch: int, start: int, stop: int) -> tuple[Array, Array]:
        """Return the file numbers and the row numbers of the samples at positions start … stop - 1 of an epoch."""
        files, rows = [], []
        while start < stop:
            number = self.window_at(epoch, start)
            first = self._starts(epoch, number)
            window = self._load_window(epoch, number)
            end = min(stop, first + len(window[0]))
            files.append(window[0][start - first : end - first])
            rows.append(window[1][start - first : end - first])
            start = end
        empty = np.zeros(0, dtype=np.int64)
        return np.concatenate([empty, *files]), np.concatenate([empty, *rows])

    def positions(self, epoch: int, file: int, row: int | None = None) -> Array:
        """Return the sorted positions of a file's samples in an epoch, or of one row of the file: of at most one."""
        place = int(np.flatnonzero(self._load_epoch(epoch)[0] == file)[0])
        number = place // self._window
        files, rows = self._load_window(epoch, number)
        chosen = (files == file) if row is None else (files == file) & (rows == row)
        return np.asarray(np.flatnonzero(chosen) + self._starts(epoch, number))

    def window_at(self, epoch: int, position: int) -> int:
        """Return the number of the window with a position. Raises IndexError for a position after the epoch."""
        if not 0 <= position < self.samples:
            raise IndexError(f"position {position} of an order of {self.samples} samples")
        ends = self._load_epoch(epoch)[1]
        return int(np.searchsorted(ends, position, side="right") - 1) // self._window

    def files_of(self, epoch: int, window: int) -> list[int]:
        """Return the files of a window in an epoch, in their order; none for a window after the last."""
        files = self._load_epoch(epoch)[0]
        return [int(file) for file in files[window * self._window : (window + 1) * self._window]]

    def _starts(self, epoch: int, window: int) -> int:
        return int(self._load_epoch(epoch)[1][window * self._window])

    def _load_epoch(self, epoch: int) -> tuple[Array, Array]:
        """Return the files in the order of an epoch, and the position of the first sample of each."""

        def permute() -> tuple[Array, Array]:
            files = np.arange(len(self._counts))
            if self._shuffle:
                files = np.argsort(_hash(self._seed, epoch, files), kind="stable")
            return files, np.concatenate([[0], np.cumsum(self._counts[files])])

        return self._epochs.get(epoch, permute)

    def _load_window(self, epoch: int, number: int) -> tuple[Array, Array]:
        """Return the file and the row of each sample of a window, in the order of an epoch."""

        def permute() -> tuple[Array, Array]:
            chosen = np.asarray(self.files_of(epoch, number), dtype=np.int64)
            counts = self._counts[chosen]
            files = np.repeat(chosen, counts)
            rows = np.arange(len(files)) - np.repeat(np.cumsum(counts) - counts, counts)
            if not self._shuffle:
                return files, rows
            order = np.argsort(_hash(self._seed, epoch, files, rows), kind="stable")
            return files[order], rows[order]

        return self._windows.get((epoch, number), permute)


def runs_of(epoch: int, positions: Array) -> list[Range]:
    """Return sorted positions of an epoch as ranges."""
    if not len(positions):
        return []
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    bounds = [0, *cuts.tolist(), len(positions)]
    return [(epoch, int(positions[first]), int(positions[last - 1]) + 1) for first, last in pairwise(bounds)]


class SourceOrder:
    """The order of one source of a described loader: paths of the data set in the place of file numbers."""

    def __init__(self, described: Mapping[str, Any], seed: int, index: Index) -> None:
        self.name = str(described["name"])
        self.folder, self.dataset = str(described["folder"]), str(described["dataset"])
        self.index = index
        self.order = Order(index.counts, seed=seed, window=described["window"], shuffle=described["shuffle"])
        self._numbers = {path: number for number, path in enumerate(index.files)}

    def positions_of(self, epoch: int, path: str, row: int | None = None) -> list[Range]:
        """Return the positions of a file's samples in an epoch, or of one row of the file; none for another path."""
        number = self._numbers.get(path)
        return [] if number is None else runs_of(epoch, self.order.positions(epoch, number, row))


def sources_of(description: Mapping[str, Any], read: Callable[[str], bytes]) -> dict[str, SourceOrder]:
    """Return the orders of the sources in a loader's description, by name. `read` returns an object by its digest."""
    return {
        item["name"]: SourceOrder(item, description["seed"], Index.decode(read(item["index"])))
        for item in description["sources"]
    }


def _hash(seed: int, epoch: int, *parts: Array) -> Array:
    """Return a hash of seed, epoch and parts for each element: rounds of SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = np.zeros(len(parts[0]), dtype=np.uint64)
    for part in (np.uint64(seed % _BITS), np.uint64(epoch % _BITS), *parts):
        value = (value ^ np.asarray(part).astype(np.uint64)) + np.uint64(_GOLDEN)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(_FIRST)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(_SECOND)
        value ^= value >> np.uint64(31)
    return value
