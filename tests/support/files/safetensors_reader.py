"""A reader of safetensors files that shares no code with the writer, by the format's description.

https://huggingface.co/docs/safetensors
"""

import json
from pathlib import Path

import torch

_TYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "C64": torch.complex64,
}


def load(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a file; fail if it violates the format."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert data[8:9] == b"{" and length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    body = memoryview(data)[8 + length :]
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = entry["data_offsets"]
        assert start == end, f"there is a hole before {name}"
        kind = _TYPES[entry["dtype"]]
        assert start % kind.itemsize == 0, f"{name} is not aligned"
        raw = torch.tensor(list(body[start:stop]), dtype=torch.uint8)
        tensors[name] = raw.view(kind).view(entry["shape"])
        end = stop
    assert end == len(body), "there is something behind the last tensor"
    return tensors, metadata


def load_all(directory: Path, stem: str) -> dict[str, torch.Tensor]:
    """Return the tensors of all files of an index."""
    index = json.loads((directory / f"{stem}.safetensors.index.json").read_text())
    every: dict[str, torch.Tensor] = {}
    for name in sorted(set(index["weight_map"].values())):
        tensors, _ = load(directory / name)
        assert {tensor for tensor, file in index["weight_map"].items() if file == name} == tensors.keys()
        every |= tensors
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in every.values())
    return every
