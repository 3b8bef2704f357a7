"""A mixture of all kinds of sources, and its samples as the plain reference makes them."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from m5ws.data import Loader, Source
from tests.datasets import reference, written
from tests.datasets.written import Folder

BATCH, SEED = 24, 11
WEIGHTS = [2, 1, 3, 1]
_LENGTH, _EXTRA, _CUT = 7, 1, 4


def _is_kept(row: Any) -> bool:
    return bool(row["id"] % 5)


def _tokens(row: Any) -> Any:
    return np.array([row["id"]] * (row["id"] % 6), np.int64)


def _shards(first: int, files: int, rows: int) -> list[list[dict[str, int]]]:
    ids = itertools.count(first)
    return [[{"id": next(ids)} for _ in range(rows + number % 3)] for number in range(files)]


_JSON, _TEXT = _shards(0, 7, 9), _shards(1000, 5, 8)
_ROWS = [np.arange(30 + 5 * number) + 2000 + 100 * number for number in range(4)]
_BOOKS = [[np.full(3 + (4 * number + book) % 9, 3000 + 10 * number + book) for book in range(6)] for number in range(3)]


def write(folder: Path) -> None:
    """Write the data sets."""
    written.write_jsonl(folder / "json", _JSON)
    written.write_jsonl(folder / "text", _TEXT)
    written.write_npy(folder / "rows", [tokens.astype(np.uint16) for tokens in _ROWS])
    written.write_megatron(folder / "books", _BOOKS)


def loaders(folder: Path, world: int, workers: int, seed: int = SEED) -> list[Loader]:
    """Return the loader of each rank."""
    return [loader(folder, rank, world, workers, seed) for rank in range(world)]


def loader(folder: Path, rank: int, world: int, workers: int, seed: int = SEED) -> Loader:
    """Return the loader of a rank."""
    packing: Any = {"pack": True, "length": _LENGTH, "extra": _EXTRA, "window": 2}
    sources = [
        Source(dataset=Folder(folder / "json", "data/json"), window=3, keep=_is_kept, weight=0.2),
        Source(dataset=Folder(folder / "text", "data/text"), tokens=_tokens, weight=0.1, **packing),
        Source(dataset=Folder(folder / "rows", "data/rows"), length=_CUT, window=2, weight=0.3),
        Source(dataset=Folder(folder / "books", "data/books"), weight=0.1, **packing),
    ]
    kept: Any = {"cache": folder / "cache", "collate": list}
    return Loader(sources, batch_size=BATCH, seed=seed, workers=workers, rank=rank, world=world, threads=1, **kept)


def plain(sample: Any) -> Any:
    """Return a sample as plain data."""
    return sample if isinstance(sample, dict) else [int(token) for token in sample]


def expected(seed: int = SEED) -> Iterator[list[Any]]:
    """Yield the samples of each step, of all ranks together."""
    cut = [[rows[at : at + _CUT] for at in range(0, len(rows) // _CUT * _CUT, _CUT)] for rows in _ROWS]
    kept = (row for _, row in reference.documents(_JSON, seed, 3) if _is_kept(row))
    text = reference.packed(reference.documents(_TEXT, seed, 2), _LENGTH, _EXTRA, _tokens)
    books = reference.packed(reference.documents(_BOOKS, seed, 2), _LENGTH, _EXTRA, lambda book: book)
    rows = (window for _, window in reference.documents(cut, seed, 2))
    stream = reference.mixed([kept, text, rows, books], WEIGHTS)
    while True:
        yield [plain(sample) for sample in itertools.islice(stream, BATCH)]
