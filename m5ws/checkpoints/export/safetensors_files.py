"""Tensors as safetensors files, written as they are read: eight bytes of length, a header of JSON, the bytes.

Nothing but the bytes that are in flight is in memory, and no tensor library is needed. Several files have an index, as
Hugging Face's libraries write and read it. https://huggingface.co/docs/safetensors
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from m5ws.errors import UsageError
from m5ws.progress import Progress
from m5ws.repository.concurrency import Job, fly
from m5ws.repository.tensors import Layout, Parts, Reader

FILE_BYTES = 5 * 10**9
"""The most that a file has, unless one tensor alone has more."""

_THREADS = 8
_BUDGET_BYTES = 256 * 2**20
_ALIGNMENT = 8
_TYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "complex64": "C64",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
}


class File(msgspec.Struct, frozen=True, kw_only=True):
    """One file, as it will be: its tensors in order, and everything before their bytes."""

    name: str
    tensors: tuple[Layout, ...]
    head: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.head) + sum(tensor.size_bytes for tensor in self.tensors)


def plan(layouts: Sequence[Layout], stem: str, said: Mapping[str, str], file_bytes: int = FILE_BYTES) -> list[File]:
    """Return the files that hold `layouts`; `said` is written into each header.

    Raises UsageError for a type of element that the format does not have.
    """
    unknown = sorted({found.dtype for found in layouts if found.dtype not in _TYPES})
    if unknown:
        raise UsageError(
            f"the safetensors format has no tensors of type {', '.join(unknown)}",
            hint="Export with --format dcp, which has.",
        )
    groups = list(_split(layouts, file_bytes)) or [[]]
    names = [f"{stem}.safetensors"]
    if len(groups) > 1:
        names = [f"{stem}-{number + 1:05d}-of-{len(groups):05d}.safetensors" for number in range(len(groups))]
    return [_file(name, group, said) for name, group in zip(names, groups, strict=True)]


def index(files: Sequence[File], stem: str) -> dict[str, bytes]:
    """Return the file that says which tensor is where, by its name: none is needed for a single file."""
    if len(files) < 2:
        return {}
    tensors = [(tensor, file.name) for file in files for tensor in file.tensors]
    document = {
        "metadata": {"total_size": sum(tensor.size_bytes for tensor, _ in tensors)},
        "weight_map": dict(sorted((tensor.name, name) for tensor, name in tensors)),
    }
    return {f"{stem}.safetensors.index.json": json.dumps(document, indent=2).encode() + b"\n"}


def write(files: Sequence[File], parts: Parts, directory: Path, progress: Progress | None) -> None:
    """Write files into a directory. Raises NotFound, CorruptObject."""
    done, total = 0, sum(file.size_bytes for file in files)
    for file in files:
        with open(directory / file.name, "wb") as stream:
            done += stream.write(file.head)
            for data in fly(_reads(file, parts), _THREADS, _BUDGET_BYTES):
                done += stream.write(data)
                if progress:
                    progress("writing tensors", done, total)


def _reads(file: File, parts: Parts) -> Iterator[Job[bytearray]]:
    for tensor in file.tensors:
        reader = Reader(parts, tensor)
        for start, end in reader.windows():
            # A window, and the parts that it is made of.
            yield 2 * (end - start), lambda reader=reader, start=start, end=end: reader.read(start, end)  # type: ignore[misc]


def _split(layouts: Sequence[Layout], file_bytes: int) -> Iterator[list[Layout]]:
    group: list[Layout] = []
    for found in layouts:
        if group and sum(one.size_bytes for one in group) + found.size_bytes > file_bytes:
            yield group
            group = []
        group.append(found)
    if group:
        yield group


def _file(name: str, group: Sequence[Layout], said: Mapping[str, str]) -> File:
    # Large elements first, so that each tensor begins at a multiple of its element's size.
    ordered = sorted(group, key=lambda found: -found.item_bytes)
    header: dict[str, object] = {"__metadata__": {"format": "pt", **said}}
    place = 0
    for found in ordered:
        end = place + found.size_bytes
        header[found.name] = {"dtype": _TYPES[found.dtype], "shape": found.shape, "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return File(name=name, tensors=tuple(ordered), head=len(text).to_bytes(8, "little") + text)
