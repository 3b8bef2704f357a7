"""Tensors as safetensors files, written while they are read: eight bytes of length, a JSON header, the bytes.

Memory holds the bytes in flight alone, and no tensor library is needed. Several files have an index in the format of
Hugging Face's libraries. https://huggingface.co/docs/safetensors
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from m5ws.errors import UsageError
from m5ws.progress import Progress, report
from m5ws.repository.concurrency import Job, bounded_map
from m5ws.repository.tensors import Layout, PartCache, TensorReader

FILE_BYTES = 5 * 10**9
"""Largest size of a file, unless a single tensor is larger."""

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


class PlannedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One planned file: its tensors in order, and the bytes before them."""

    name: str
    tensors: tuple[Layout, ...]
    head: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.head) + sum(tensor.size_bytes for tensor in self.tensors)


def plan(
    layouts: Sequence[Layout], stem: str, metadata: Mapping[str, str], file_bytes: int = FILE_BYTES
) -> list[PlannedFile]:
    """Return the files for `layouts`, with `metadata` in each header.

    Raises UsageError for a type of element that the format does not have.
    """
    unknown = sorted({tensor.dtype for tensor in layouts if tensor.dtype not in _TYPES})
    if unknown:
        raise UsageError(
            f"the safetensors format has no tensors of type {', '.join(unknown)}",
            hint="`Run.load` of the Python interface reads tensors of all types.",
        )
    groups = list(_split(layouts, file_bytes)) or [[]]
    names = [f"{stem}.safetensors"]
    if len(groups) > 1:
        names = [f"{stem}-{number + 1:05d}-of-{len(groups):05d}.safetensors" for number in range(len(groups))]
    return [_file(name, group, metadata) for name, group in zip(names, groups, strict=True)]


def index(files: Sequence[PlannedFile], stem: str) -> dict[str, bytes]:
    """Return the index file, by its name: which file has which tensor. A single file needs none."""
    if len(files) < 2:
        return {}
    tensors = [(tensor, file.name) for file in files for tensor in file.tensors]
    document = {
        "metadata": {"total_size": sum(tensor.size_bytes for tensor, _ in tensors)},
        "weight_map": dict(sorted((tensor.name, name) for tensor, name in tensors)),
    }
    return {f"{stem}.safetensors.index.json": json.dumps(document, indent=2).encode() + b"\n"}


def write(files: Sequence[PlannedFile], parts: PartCache, directory: Path, progress: Progress | None) -> None:
    """Write files into a directory. Raises NotFound, CorruptObject."""
    done, total = 0, sum(file.size_bytes for file in files)
    for file in files:
        with open(directory / file.name, "wb") as stream:
            done += stream.write(file.head)
            for data in bounded_map(_reads(file, parts)):
                done += stream.write(data)
                report(progress, "writing tensors", done, total)


def _reads(file: PlannedFile, parts: PartCache) -> Iterator[Job[bytearray]]:
    for tensor in file.tensors:
        reader = TensorReader(parts, tensor)
        for start, end in reader.windows():
            # Memory: a window, and the parts that it consists of.
            yield 2 * (end - start), partial(reader.read, start, end)


def _split(layouts: Sequence[Layout], file_bytes: int) -> Iterator[list[Layout]]:
    group: list[Layout] = []
    for layout in layouts:
        if group and sum(tensor.size_bytes for tensor in group) + layout.size_bytes > file_bytes:
            yield group
            group = []
        group.append(layout)
    if group:
        yield group


def _file(name: str, group: Sequence[Layout], metadata: Mapping[str, str]) -> PlannedFile:
    # Large elements first, so that each tensor begins at a multiple of its element's size.
    ordered = sorted(group, key=lambda tensor: -tensor.item_bytes)
    header: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    place = 0
    for tensor in ordered:
        end = place + tensor.size_bytes
        header[tensor.name] = {"dtype": _TYPES[tensor.dtype], "shape": tensor.shape, "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return PlannedFile(name=name, tensors=tuple(ordered), head=len(text).to_bytes(8, "little") + text)
