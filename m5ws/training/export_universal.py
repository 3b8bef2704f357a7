"""A ZeRO checkpoint in DeepSpeed's universal format, which its engine loads on any number of ranks.

What deepspeed.checkpoint.ds_to_universal would make of DeepSpeed's own files, written straight from the store: a folder
for each parameter, one tensor in memory at a time. https://www.deepspeed.ai/tutorials/universal-checkpointing/
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from deepspeed.checkpoint.constants import CAT_DIM, FP32_WEIGHT_KEY, PARAM

from m5ws.errors import CorruptObject
from m5ws.ports import Progress
from m5ws.records import Content
from m5ws.repository.objects import Objects
from m5ws.repository.tensors import Layout, Parts, Reader
from m5ws.training import deepspeed_state, deepspeed_weights, export_deepspeed
from m5ws.training.deepspeed_weights import Trained

_HELD_BYTES = 256 * 2**20
_IN_PARAMETERS = ("base_optimizer_state", "fp32_flat_groups", "param_slice_mappings", "single_partition_of_fp32_groups")


def write(objects: Objects, content: Content, directory: Path, tag: str, progress: Progress | None) -> None:
    """Write a checkpoint into `directory/TAG_universal`, and what says that it is the newest of its format.

    Raises NotFound, CorruptObject, RestoreError.
    """
    folder = directory / f"{tag}_universal"
    (folder / "zero").mkdir(parents=True)
    tensors = {tensor.name: tensor for tensor in content.tensors}
    names = export_deepspeed.files(content)
    for name in (name for name in names if name.endswith("_model_states.pt")):
        state = deepspeed_state.read(objects, content.blobs[name], tensors)
        torch.save(export_deepspeed.with_shapes(state), folder / name)
    optimizer = min(name for name in names if name.endswith("_optim_states.pt") and "zero_pp_rank_0_" in name)
    numbers = deepspeed_state.read_numbers(objects, content.blobs[optimizer], tensors)["optimizer_state_dict"]
    found = deepspeed_weights.zero(objects, content)
    base = numbers["base_optimizer_state" if found.stage < 3 else "optimizer_state_dict"]
    torch.save(_of_all(numbers, base, found.stage), folder / "zero" / "optimizer_state.pt")
    widest = max((len(one.weight.boxes) for one in found.trained), default=1)
    parts = Parts(objects, max(_HELD_BYTES, 2 * widest * objects.format.chunk_bytes))
    for number, one in enumerate(found.trained):
        _write_parameter(parts, one, base["state"].get(one.group, {}), folder / "zero" / _folder(one.name))
        if progress:
            progress("writing parameters", number + 1, len(found.trained))
    (directory / "latest_universal").write_text(folder.name)


def _write_parameter(parts: Parts, one: Trained, state: Mapping[str, Any], folder: Path) -> None:
    folder.mkdir()
    for key, layout in {FP32_WEIGHT_KEY: one.weight, **one.moments}.items():
        torch.save({CAT_DIM: 0, PARAM: _tensor(parts, layout)}, folder / f"{key}.pt")
    if "step" in state:
        torch.save(state["step"], folder / "step.pt")


def _tensor(parts: Parts, layout: Layout) -> torch.Tensor:
    kind: torch.dtype = getattr(torch, layout.dtype)
    if not layout.elements:
        return torch.empty(layout.shape, dtype=kind)
    data = Reader(parts, layout).read(0, layout.size_bytes)
    return torch.frombuffer(data, dtype=torch.uint8).view(kind).view(layout.shape)


def _of_all(numbers: Mapping[str, Any], base: Mapping[str, Any], stage: int) -> dict[str, Any]:
    """Return what is the same on all ranks. ZeRO 3 asks for the count of steps here, the others by parameter."""
    kept = {key: value for key, value in numbers.items() if key not in _IN_PARAMETERS}
    if stage == 3:
        counts = {number: dict(_counts(state)) for number, state in base["state"].items()}
        kept["optimizer_state_dict"] = {"state": counts, "param_groups": base["param_groups"]}
    return {**kept, "param_groups": base["param_groups"]}


def _counts(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in state.items():
        if not isinstance(value, torch.Tensor) or not value.shape:
            yield key, value


def _folder(name: str) -> str:
    """Return a parameter's name if it can be a folder's: a store may say anything. Raises CorruptObject."""
    if name in {"", ".", ".."} or os.path.basename(name) != name:
        raise CorruptObject(f"the checkpoint has a parameter whose name no folder has: {name!r}")
    return name
