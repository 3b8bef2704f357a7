"""A source of a loader: a data set, the way its samples are made, and its files as a process reads them.

Invariant: a sample is a function of the files, the seed, the epoch, its file and its row.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import blake3
import msgspec
import numpy as np

from m5ws.data import counting
from m5ws.data.counting import Home
from m5ws.data.formats import FORMATS, BadFile, Cut, Options, Reader
from m5ws.data.kept import KeptFiles
from m5ws.data.order import Array, Index
from m5ws.data.recent import Recent
from m5ws.errors import UsageError

_KEPT_DOCUMENTS = 64


class File(Protocol):
    """A file of a data set: its path in the data set."""

    @property
    def path(self) -> str: ...


class Dataset(Protocol):
    """A data set as `m5ws.data.pinned` opens it. `fetch` waits for the verified file with a number.

    `folder` is the path in the workspace to which the paths of the files are relative.
    """

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def files(self) -> Sequence[File]: ...

    def fetch(self, index: int) -> Path: ...


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set, and the way its samples are made.

    - `dataset`: its path in the workspace, or an open data set. `name`: of the source; the last part of the path.
    - `weight`: its share of the samples in a mixture. `window`: the number of files that are shuffled together.
    - `format`: npy, megatron, parquet, jsonl, tar or images; by the suffixes of the files, if all have one format.
    - `length`: tokens of a sample; with `extra` more tokens, which the next sample begins with (1 for targets).
    - `pack`: join documents, and cut them into samples of `length`. `tokens(sample)` returns a document's token ids,
      for a format without tokens. A document goes on in the next sample.
    - `keep(sample)`: False leaves a sample out. `transform(sample, generator)`: its result is the sample. The generator
      depends on the seed, the epoch and the sample alone.
    - `columns`: of Parquet.

    Functions must be picklable if workers are spawned.
    """

    dataset: "str | Dataset"
    name: str = ""
    weight: float = 1.0
    format: str | None = None
    window: int = 8
    shuffle: bool = True
    length: int | None = None
    extra: int = 0
    pack: bool = False
    columns: Sequence[str] | None = None
    tokens: Callable[[Any], Any] | None = None
    keep: Callable[[Any], bool] | None = None
    transform: Callable[[Any, np.random.Generator], Any] | None = None

    def __post_init__(self) -> None:
        if self.pack and self.length is None:
            raise UsageError("a source with pack=True needs a length", hint="Give the tokens of a sample: length=….")
        if self.tokens is not None and not self.pack:
            raise UsageError("tokens= is for packing", hint="Add pack=True and length=…, or use transform=….")
        if self.weight <= 0 or self.window < 1 or self.extra < 0 or (self.length is not None and self.length < 1):
            raise UsageError("a source has weight > 0, window ≥ 1, length ≥ 1 and extra ≥ 0")


class Piece(NamedTuple):
    """A part of a sample: tokens `begin` … `end` - 1 of a row. Without packing, (0, 1) is the whole row."""

    epoch: int
    file: int
    row: int
    begin: int
    end: int


class Shards:
    """The files with samples of a source. `kept` keeps the index, and `measured` the lengths. Picklable.

    `home` has the counts of a dataset that stays in its remote. Lengths depend on functions, whose results no digest
    covers: so `measured` belongs to one run, or to one loader.
    """

    def __init__(
        self,
        source: Source,
        dataset: Dataset,
        kept: KeptFiles,
        measured: KeptFiles,
        seed: int,
        home: Home | None = None,
    ) -> None:
        self.source, self.dataset, self.seed = source, dataset, seed
        self.name = source.name or dataset.name.rpartition("/")[2]
        self.format = source.format or _find_format(dataset)
        if self.format not in FORMATS:
            raise UsageError(
                f"unknown format {self.format!r} of {dataset.name}", hint=f"Formats: {', '.join(FORMATS)}."
            )
        cut = Cut(source.length, source.extra) if source.length is not None and not source.pack else None
        self._options = Options(cut, None if source.columns is None else tuple(source.columns))
        self._numbers, self._beside = _find_files(dataset, self.format)
        reading = _key(self.format, self._options, counting.PARTS)
        key = _key(dataset.digest, dataset.name, reading)
        self._measured, self._name = measured, _key(key, self.name)
        if self.measures:
            _refuse_other_functions((measured.folder, self._name), source, self.name)
        self.index = Index.decode(kept.get(f"{key}.index", lambda: self._count(home, reading).encode()))
        self.digest = blake3.blake3(msgspec.json.encode((self.index.counts, self.index.files))).hexdigest()
        """Of the files and their numbers of samples."""
        self._readers: Recent[Reader] = Recent(2 * source.window + 2)
        self._lengths: Recent[Array] = Recent(4 * source.window + 4)
        self._documents: Recent[Array] = Recent(_KEPT_DOCUMENTS)

    @property
    def measures(self) -> bool:
        """True if the order needs the length of each sample, or its absence."""
        return self.source.pack or self.source.keep is not None

    def fetch(self, file: int) -> Path:
        """Return the path of a file on this machine; waits for it."""
        if (beside := self._beside.get(file)) is not None:
            self.dataset.fetch(beside)
        return self.dataset.fetch(self._numbers[file])

    def lengths(self, file: int) -> Array:
        """Return the tokens of each row of a file, or 1; -1 for a row that is left out. One process of a node measures.

        A resume on this machine reads the lengths that were measured before.
        """
        return self._lengths.get(file, lambda: self._load_lengths(file))

    def sample(self, pieces: Sequence[Piece]) -> Any:
        """Return the sample with these pieces."""
        first, source = pieces[0], self.source
        if source.pack:
            made: Any = np.concatenate([self._tokens(item.file, item.row)[item.begin : item.end] for item in pieces])
        else:
            made = self._read(first.file, first.row)
        if isinstance(made, np.ndarray):
            # Torch has no arithmetic for most unsigned integers, and the file is mapped read-only.
            made = np.array(made, dtype=np.int64 if made.dtype.kind == "u" and made.dtype.itemsize > 1 else None)
        if source.transform is None:
            return made
        begin = first.begin if source.pack else 0
        entropy = (self.seed % 2**64, first.epoch, first.file, first.row, begin)
        return source.transform(made, np.random.default_rng(entropy))

    def _open(self, file: int) -> Reader:
        def read() -> Reader:
            reader = self._read_file(file)
            if len(reader) != self.index.counts[file]:
                raise BadFile(
                    f"{self.index.files[file]} has {len(reader)} samples, and its index has {self.index.counts[file]}"
                )
            return reader

        return self._readers.get(file, read)

    def _read_file(self, file: int) -> Reader:
        beside = self._beside.get(file)
        path = None if beside is None else self.dataset.fetch(beside)
        name = self.dataset.files[self._numbers[file]].path
        return FORMATS[self.format].open(self.fetch(file), path, name, self._options)

    def _read(self, file: int, row: int) -> Any:
        reader = self._open(file)
        try:
            return reader[row]
        except (ValueError, OSError) as error:
            raise BadFile(f"sample {self.index.files[file]}#{row} of {self.dataset.name}: {error}") from error

    def _tokens(self, file: int, row: int) -> Array:
        def make() -> Array:
            sample = self._read(file, row)
            return np.asarray(sample if self.source.tokens is None else self.source.tokens(sample))

        return self._documents.get((file, row), make)

    def _load_lengths(self, file: int) -> Array:
        content = self._measured.get(f"{self._name}/{file}", lambda: self._measure(file).tobytes())
        return np.frombuffer(content, np.int32)

    def _measure(self, file: int) -> Array:
        source, reader = self.source, self._open(file)
        stored = getattr(reader, "lengths", None)
        if stored is not None and source.keep is None and source.tokens is None:
            return np.asarray(stored, np.int32)
        lengths = np.ones(len(reader), np.int32)
        for row in range(len(reader)):
            if source.keep is not None and not source.keep(reader[row]):
                lengths[row] = -1
            elif source.pack:
                lengths[row] = len(reader[row] if source.tokens is None else source.tokens(reader[row]))
        return lengths

    def _count(self, home: Home | None, reading: str) -> Index:
        """Return the index, by the counts in the store or by counting the samples in each file."""
        if FORMATS[self.format].single:
            counts: tuple[int, ...] = (1,) * len(self._numbers)
        else:
            counts = counting.count(home, self.dataset.digest, reading, self._numbers, self._count_file)
        return Index(tuple(self.dataset.files[number].path for number in self._numbers), counts)

    def _count_file(self, file: int) -> int:
        known, beside = FORMATS[self.format], self._beside.get(file)
        if known.count_beside is not None and beside is not None:
            return known.count_beside(self.dataset.fetch(beside), self._options)
        return len(self._read_file(file))


_measuring: dict[tuple[Path, str], tuple[Any, ...]] = {}
"""The functions that measure lengths, by the folder and the name of the lengths, of all loaders of this process."""


def _refuse_other_functions(measured: tuple[Path, str], source: Source, name: str) -> None:
    """Raise UsageError if another loader of this process measures the same files by other functions."""
    functions = (source.pack, source.keep, source.tokens)
    if _measuring.setdefault(measured, functions) != functions:
        raise UsageError(
            f"two loaders measure the source {name} with different pack, keep or tokens",
            hint="Name each source: Source(name=…). A loader that is made again needs the same function objects.",
        )


def _key(*parts: Any) -> str:
    return blake3.blake3(msgspec.json.encode(parts)).hexdigest()[:32]


def _find_format(dataset: Dataset) -> str:
    """Return the one format of a data set's files. Raises UsageError."""
    present = {os.path.splitext(file.path)[1].lower() for file in dataset.files}
    found = [name for name, known in FORMATS.items() if present.intersection(known.suffixes)]
    if len(found) != 1:
        listed = " and ".join(found) if found else "no files"
        raise UsageError(
            f"{dataset.name} has {listed} of a known format",
            hint=f"Name its format: Source(format=…), of {[*FORMATS]}.",
        )
    return found[0]


def _find_files(dataset: Dataset, name: str) -> tuple[list[int], dict[int, int]]:
    """Return the numbers of the files with samples, and for each such file the file beside it, if the format has one.

    Raises BadFile.
    """
    known = FORMATS[name]
    numbers = [
        number for number, file in enumerate(dataset.files) if os.path.splitext(file.path)[1].lower() in known.suffixes
    ]
    for path in (dataset.files[number].path for number in numbers):
        if os.fsencode(path).decode(errors="replace") != path:
            raise BadFile(f"a name in {dataset.name} is not UTF-8: {os.fsencode(path)!r}", hint="Rename the file.")
    if known.beside is None:
        return numbers, {}
    stems = {
        os.path.splitext(file.path)[0]: at for at, file in enumerate(dataset.files) if file.path.endswith(known.beside)
    }
    beside = {}
    for file, number in enumerate(numbers):
        path = dataset.files[number].path
        if (at := stems.get(os.path.splitext(path)[0])) is None:
            raise BadFile(f"{dataset.name}/{path} has no {known.beside} beside it")
        beside[file] = at
    return numbers, beside
