"""Files with samples: token files, Parquet, JSON lines, tars of WebDataset, and images.

A reader is one open file: `len(reader)` samples by their rows. Nothing here depends on an order or on torch.
"""

import io
import mmap
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from m5ws.data.order import Array
from m5ws.data.recent import Recent
from m5ws.errors import M5Error, MissingExtra

_SCANNED_BYTES = 16 * 2**20
_IDX_MAGIC, _IDX_HEADER = b"MMIDIDX\x00\x00", 34
_IDX_TYPES = {1: "u1", 2: "i1", 3: "i2", 4: "i4", 5: "i8", 6: "f8", 7: "f4", 8: "u2"}
_IMAGES = (".jpg", ".jpeg", ".png", ".webp")
_KEPT_ROW_GROUPS = 2


class BadFile(M5Error):
    """A file of a data set does not have the format that its loader reads."""

    exit_code = 3
    hint = "Write the file again, or name the format of the data set: Source(…, format=…)."


class Cut(msgspec.Struct, frozen=True):
    """Windows of a token file: `length` tokens and the `extra` tokens after them. The next window has no gap."""

    length: int
    extra: int = 0


class Reader(Protocol):
    """One open file."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> Any: ...


class _Windows:
    """Windows of a row of tokens."""

    def __init__(self, tokens: Array, cut: Cut) -> None:
        self._tokens, self._cut = tokens, cut

    def __len__(self) -> int:
        return windows(len(self._tokens), self._cut)

    def __getitem__(self, row: int) -> Array:
        start = row * self._cut.length
        return self._tokens[start : start + self._cut.length + self._cut.extra]


class Documents:
    """Sequences in a Megatron `.bin` by the table in its `.idx`; without the `.bin`, their number and lengths alone.

    The format of `MMapIndexedDataset`: https://github.com/NVIDIA/Megatron-LM (indexed_dataset.py).
    """

    def __init__(self, data: Path | None, table: Path) -> None:
        content = np.memmap(table, np.uint8, "r") if table.stat().st_size else np.zeros(0, np.uint8)
        if content[:9].tobytes() != _IDX_MAGIC or len(content) < _IDX_HEADER or content[17] not in _IDX_TYPES:
            raise BadFile(f"{table.name} is not an index of Megatron's token files")
        self._dtype = np.dtype(_IDX_TYPES[int(content[17])]).newbyteorder("<")
        count = int.from_bytes(content[18:26].tobytes(), "little")
        self.lengths: Array = np.frombuffer(content, "<i4", count, _IDX_HEADER)
        self._starts: Array = np.frombuffer(content, "<i8", count, _IDX_HEADER + 4 * count)
        self.tokens: Array = np.memmap(data, self._dtype, "r") if data and data.stat().st_size else np.zeros(0, "i8")
        if (
            data is not None
            and count
            and int(self._starts[-1]) + self.lengths[-1] * self._dtype.itemsize > (data.stat().st_size)
        ):
            raise BadFile(f"{data.name} is shorter than {table.name} states")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> Array:
        start = int(self._starts[row]) // self._dtype.itemsize
        return self.tokens[start : start + int(self.lengths[row])]


class _JsonLines:
    """The lines of a JSON Lines file that are not empty."""

    def __init__(self, path: Path) -> None:
        self._content = _map(path)
        ends = []
        for start in range(0, len(self._content), _SCANNED_BYTES):
            part = np.frombuffer(self._content[start : start + _SCANNED_BYTES], np.uint8)
            ends.append(np.flatnonzero(part == ord("\n")) + start)
        stops = np.concatenate([np.zeros(0, np.int64), *ends, [len(self._content)]])
        starts = np.concatenate([[0], stops[:-1] + 1])
        self._lines = np.stack([starts, stops], axis=1)[stops > starts]

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, row: int) -> Any:
        start, stop = self._lines[row]
        return msgspec.json.decode(self._content[start:stop])


class _Parquet:
    """The rows of a Parquet file. The row groups that were read last stay decoded."""

    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise MissingExtra("reading Parquet", "data") from error
        self._file = pyarrow.parquet.ParquetFile(path, memory_map=True)
        self._columns = None if columns is None else list(columns)
        sizes = [self._file.metadata.row_group(group).num_rows for group in range(self._file.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self._groups: Recent[Any] = Recent(_KEPT_ROW_GROUPS)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, row: int) -> dict[str, Any]:
        group = int(np.searchsorted(self._starts, row, side="right")) - 1
        table = self._groups.get(group, lambda: self._file.read_row_group(group, columns=self._columns))
        return dict(table.slice(row - int(self._starts[group]), 1).to_pylist()[0])


class _Tar:
    """The samples of a WebDataset shard: consecutive members with one name up to the first dot of the base name."""

    def __init__(self, path: Path) -> None:
        self._content = _map(path)
        self._samples: list[tuple[str, list[tuple[str, int, int]]]] = []
        if not self._content:
            return
        with tarfile.open(path) as archive:
            for member in archive:
                folder, _, base = member.name.rpartition("/")
                stem, _, suffix = base.partition(".")
                if not member.isfile() or not stem:
                    continue
                key = f"{folder}/{stem}" if folder else stem
                if not self._samples or self._samples[-1][0] != key:
                    self._samples.append((key, []))
                self._samples[-1][1].append((suffix, member.offset_data, member.size))

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, row: int) -> dict[str, Any]:
        key, members = self._samples[row]
        parts = {suffix: _decode(suffix, self._content[start : start + size]) for suffix, start, size in members}
        return {"__key__": key, **parts}


class _Image:
    """An image file as one sample: its pixels (height × width × 3, uint8) and the name of its folder."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name

    def __len__(self) -> int:
        return 1

    def __getitem__(self, row: int) -> dict[str, Any]:
        parts = self._name.split("/")
        return {
            "image": _decode("png", self._path.read_bytes()),
            "folder": parts[-2] if len(parts) > 1 else "",
            "path": self._name,
        }


class Options(msgspec.Struct, frozen=True):
    """Parameters of a source that decide how its files are read."""

    cut: Cut | None = None
    columns: tuple[str, ...] | None = None


class Format(NamedTuple):
    """A format by the suffixes of its files. `beside`: the suffix of a second file with the same name.

    `open` takes the path, the path beside it, the path in the data set and the options. `count_beside` counts samples
    by the file beside alone. `single`: each file has one sample, which needs no reading to count.
    """

    suffixes: tuple[str, ...]
    open: Callable[[Path, Path | None, str, Options], Reader]
    beside: str | None = None
    count_beside: Callable[[Path, Options], int] | None = None
    single: bool = False


def _open_array(path: Path, _: Path | None, name: str, options: Options) -> Reader:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise BadFile(f"{name} is not an array of NumPy: {error}") from error
    if array.ndim == 1 and options.cut is not None:
        return _Windows(array, options.cut)
    # A file of tokens is one document, and of another array each row is a sample.
    reader: Reader = array[None] if array.ndim == 1 else array
    return reader


def _open_documents(path: Path, beside: Path | None, _: str, options: Options) -> Reader:
    assert beside is not None
    documents = Documents(path, beside)
    return documents if options.cut is None else _Windows(documents.tokens, options.cut)


def _count_documents(beside: Path, options: Options) -> int:
    documents = Documents(None, beside)
    return len(documents) if options.cut is None else windows(int(documents.lengths.sum()), options.cut)


FORMATS = {
    "npy": Format((".npy",), _open_array),
    "megatron": Format((".bin",), _open_documents, beside=".idx", count_beside=_count_documents),
    "parquet": Format((".parquet",), lambda path, _, __, options: _Parquet(path, options.columns)),
    "jsonl": Format((".jsonl",), lambda path, *_: _JsonLines(path)),
    "tar": Format((".tar",), lambda path, *_: _Tar(path)),
    "images": Format(_IMAGES, lambda path, _, name, __: _Image(path, name), single=True),
}


def windows(tokens: int, cut: Cut) -> int:
    """Return the number of windows in a row of tokens; tokens after the last whole window are left out."""
    return max(0, (tokens - cut.extra) // cut.length)


def _map(path: Path) -> Any:
    """Return the content of a file without reading it into memory; the mapping outlives the name of the file."""
    if not path.stat().st_size:
        return b""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _decode(suffix: str, content: bytes) -> Any:
    """Return a member of a sample by the last part of its suffix; bytes for a suffix that has no decoder here."""
    kind = f".{suffix.rpartition('.')[2].lower()}"
    if kind in _IMAGES:
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingExtra("reading images", "data") from error
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    if kind == ".json":
        return msgspec.json.decode(content)
    if kind in (".txt", ".text"):
        return content.decode()
    if kind == ".cls":
        return int(content)
    return np.load(io.BytesIO(content), allow_pickle=False) if kind == ".npy" else content
