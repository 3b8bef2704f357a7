"""The samples of one source without an end, epoch after epoch, as arithmetic on its order and its lengths.

A source without packing has documents of length 1 and samples of length 1, so one rule cuts all sources: sample j of a
call has the tokens j × length … (j + 1) × length + extra - 1 after the cursor.

Invariant: the cursor and the source decide all samples that follow. Each document comes once in an epoch.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec
import numpy as np

from m5ws.data.order import Array, Order, runs_of
from m5ws.data.source import Piece, Shards
from m5ws.errors import UsageError
from m5ws.records.sample_ids import Range


class Cursor(msgspec.Struct):
    """A position in a source: the epoch, the position of a document in its order, and the tokens of it that are done.

    `credit` is the claim of the source on the next sample of a mixture.
    """

    epoch: int = 0
    position: int = 0
    offset: int = 0
    credit: int = 0


class _Documents(NamedTuple):
    """Documents in their order, with their lengths in tokens: 0 for a document that is left out."""

    epochs: Array
    positions: Array
    files: Array
    rows: Array
    lengths: Array


_NONE = _Documents(*[np.zeros(0, dtype=np.int64)] * 5)


class Taken(NamedTuple):
    """Samples of one call of `Stream.take`. `ends`: the token after each document, from the first sample on."""

    documents: _Documents
    ends: Array
    length: int
    extra: int
    ranges: list[Range]

    def pieces(self, number: int) -> list[Piece]:
        """Return the pieces of a sample."""
        at, end = number * self.length, (number + 1) * self.length + self.extra
        pieces, documents = [], self.documents
        document = int(np.searchsorted(self.ends, at, side="right"))
        while at < end:
            if (stop := min(end, int(self.ends[document]))) > at:
                begin = int(self.ends[document] - documents.lengths[document])
                epoch, file, row = (int(part[document]) for part in (documents.epochs, documents.files, documents.rows))
                pieces.append(Piece(epoch, file, row, at - begin, stop - begin))
                at = stop
            document += 1
        return pieces


class Stream:
    """The samples of a source after its cursor. `without`: numbers of files whose samples are left out."""

    def __init__(self, shards: Shards, without: AbstractSet[int]) -> None:
        source = shards.source
        self.shards, self.cursor = shards, Cursor()
        self.order = Order(shards.index.counts, seed=shards.seed, window=source.window, shuffle=source.shuffle)
        self._left_out = np.zeros(len(shards.index.counts), dtype=bool)
        self._left_out[list(without)] = True
        self.length, self._extra = (source.length or 1, source.extra) if source.pack else (1, 0)
        counts = np.asarray(shards.index.counts, dtype=np.int64)
        self.documents = int(counts[~self._left_out].sum())
        """Documents in an epoch, before `keep`."""
        if not self.documents:
            raise self._empty()

    @property
    def is_plain(self) -> bool:
        """True if each position of the order is a sample."""
        return not self.shards.measures and self.documents == self.order.samples

    def seek(self, samples: int) -> None:
        """Go to the start of the source, or of a plain source to a number of samples after it."""
        self.cursor = Cursor(*divmod(samples, self.order.samples))

    def take(self, count: int) -> Taken:
        """Return the next samples, and move the cursor after them."""
        if not count:
            return Taken(_NONE, _NONE.lengths, self.length, self._extra, [])
        cursor, done = self.cursor, count * self.length
        documents = self._read(done + self._extra)
        ends = np.cumsum(documents.lengths) - cursor.offset
        used = np.flatnonzero((documents.lengths > 0) & (ends - documents.lengths < done + self._extra) & (ends > 0))
        ranges = [
            item
            for epoch in np.unique(documents.epochs[used]).tolist()
            for item in runs_of(epoch, documents.positions[used][documents.epochs[used] == epoch])
        ]
        last = int(np.searchsorted(ends, done, side="right"))
        if last < len(ends):
            cursor.epoch, cursor.position = int(documents.epochs[last]), int(documents.positions[last])
            cursor.offset = int(done - (ends[last] - documents.lengths[last]))
        else:
            cursor.epoch, cursor.position, cursor.offset = (
                int(documents.epochs[-1]),
                int(documents.positions[-1]) + 1,
                0,
            )
        if cursor.position >= self.order.samples:
            cursor.epoch, cursor.position = cursor.epoch + 1, 0
        return Taken(documents, ends, self.length, self._extra, ranges)

    def upcoming(self) -> Iterator[list[int]]:
        """Yield the files of the cursor's window, and of the windows after it, to the end of the epoch."""
        window = self.order.window_at(self.cursor.epoch, self.cursor.position)
        while files := self.order.files_of(self.cursor.epoch, window):
            yield [file for file in files if not self._left_out[file]]
            window += 1

    def _read(self, tokens: int) -> _Documents:
        """Return documents from the cursor on that have a number of tokens after it."""
        cursor, blocks = self.cursor, list[_Documents]()
        epoch, position, missing, unseen = cursor.epoch, cursor.position, tokens + cursor.offset, self.order.samples
        while missing > 0:
            stop = min(self.order.samples, position + max(64, missing // self.length))
            files, rows = self.order.locate(epoch, position, stop)
            block = _Documents(
                np.full(len(files), epoch), np.arange(position, stop), files, rows, self._lengths(files, rows)
            )
            blocks.append(block)
            total = int(block.lengths.sum())
            missing -= total
            unseen = self.order.samples if total else unseen - len(files)
            if unseen <= 0:
                raise self._empty()
            epoch, position = (epoch + 1, 0) if stop == self.order.samples else (epoch, stop)
        return _Documents(*map(np.concatenate, zip(*blocks, strict=True)))

    def _lengths(self, files: Array, rows: Array) -> Array:
        lengths = np.where(self._left_out[files], 0, 1)
        if self.shards.measures:
            for file in np.unique(files[lengths > 0]).tolist():
                chosen = files == file
                lengths[chosen] = np.maximum(self.shards.lengths(file)[rows[chosen]], 0)
        return lengths

    def _empty(self) -> UsageError:
        return UsageError(
            f"the source {self.shards.name} has no sample in a whole epoch",
            hint="The data set is empty, or keep= and the files that are left out exclude all its samples.",
        )
