"""The layout of optimizer state: recorded by a save (`describe_leaves`), rebuilt by a restore (`rebuild_state`).

A tensor has the layout of its parameter or another layout. Invariant: if the parameter has its old layout, a rebuilt
leaf has the layout that it had when it was saved.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, empty

from m5ws.records.checkpoint import OwnTensor
from m5ws.repository.contents import TableTensor
from m5ws.training.backends import optimizer_state
from m5ws.training.backends.base import Plain
from m5ws.training.backends.tensor_names import stored_name
from m5ws.training.compat import sharded
from m5ws.training.state import content_check as content_rules
from m5ws.training.state import plain_state as plain
from m5ws.training.state import subclasses
from m5ws.training.state.plain_state import RestoreError, StateError

Stored = TableTensor | OwnTensor
_OF_PARAMETER = "parameter"


@dataclass(frozen=True)
class LayoutLike:
    """The layout of a tensor. With `of`, it has that parameter's memory format too."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str
    mesh: DeviceMesh | None = None
    placements: tuple[Placement, ...] = ()
    of: torch.Tensor | None = field(default=None, compare=False)

    def empty(self) -> torch.Tensor:
        if self.of is not None:
            return torch.empty_like(self.of, dtype=self.dtype, requires_grad=False)
        if self.mesh is not None:
            return empty(self.shape, dtype=self.dtype, device_mesh=self.mesh, placements=self.placements)
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)

    def __str__(self) -> str:
        cut = f" sharded as {self.placements} over {self.mesh}" if self.mesh is not None else ""
        return f"{self.dtype} {self.shape} on {self.device}{cut}"


def describe_leaves(states: Iterable[tuple[str, torch.Tensor, Mapping[str, Any]]]) -> dict[str, dict[str, Plain]]:
    """Return the layout of each leaf whose layout differs from its parameter's. Raises StateError.

    `states`: each parameter's name, the parameter, and its optimizer state. `devices`: the device of leaves without
    shards (Adam's step stays on the CPU). `whole`: leaves without shards whose parameter, of the same shape, is
    sharded. `placements`: shards of another shape, or sharded differently.
    """
    kinds: dict[str, dict[str, Plain]] = {"devices": {}, "whole": {}, "placements": {}}
    for name, parameter, values in states:
        for leaf, tensor in optimizer_state.leaves(name, values):
            if not isinstance(tensor, DTensor):
                kinds["devices"][leaf] = device(tensor, parameter)
                if isinstance(parameter, DTensor) and tensor.shape == parameter.shape:
                    kinds["whole"][leaf] = True
            elif not isinstance(parameter, DTensor) or tensor.device_mesh != parameter.device_mesh:
                raise StateError(f"{leaf} and its parameter are on different ranks: a restore could not rebuild it")
            elif tensor.shape != parameter.shape or tensor.placements != parameter.placements:
                kinds["placements"][leaf] = _placements_text(leaf, tensor)
    return kinds


def device(leaf: torch.Tensor, parameter: torch.Tensor) -> str:
    """Return the device of a leaf as a checkpoint has it: the parameter's, on whatever device that is later, or "cpu".

    Numbers on a CPU stay there, as in torch's `Optimizer.load_state_dict`: Adam's step.
    """
    is_on_cpu = leaf.device.type == "cpu" and (leaf.ndim == 0 or parameter.device.type != "cpu")
    return "cpu" if is_on_cpu else _OF_PARAMETER


def _placements_text(leaf: str, tensor: DTensor) -> list[str]:
    """Return the placements of a leaf that is sharded differently from its parameter. Raises StateError."""
    for placement in tensor.placements:
        if type(placement) not in (Shard, Replicate):
            raise StateError(f"{leaf} is sharded as {placement}, unlike its parameter: a restore could not rebuild it")
    return [str(placement.dim) if isinstance(placement, Shard) else "whole" for placement in tensor.placements]


def rebuild_state(
    optimized: Sequence[tuple[str, torch.Tensor, torch.optim.Optimizer]],
    stored: Mapping[str, Stored],
    common: Mapping[str, Plain],
    rank: Mapping[str, Plain] | None,
    number: int,
    make: Callable[[str, LayoutLike], torch.Tensor],
) -> Iterator[tuple[torch.optim.Optimizer, torch.Tensor, str, dict[str, Any]]]:
    """Yield each parameter's optimizer, its name and its stored state, with tensors that `make` returns.

    `optimized`: each parameter's name, the parameter, and its optimizer. `stored`: the tensors of the checkpoint.
    `common` and `rank` are as in `Backend.load`; `number` is this rank. `make` gets a leaf's name and its layout.
    No step is taken: that would move parameters and draw random numbers.
    """
    kept = [side for side in (common.get("optimizer", {}), (rank or {}).get("optimizer", {})) if side]
    held = {leaf for side in kept for leaf in plain.taken(side)}
    tops: dict[str, dict[str, str]] = {}
    for base in {name.partition("@")[0] for name in stored if name.startswith("optimizer.")} - held:
        owner, _, key = base.removeprefix("optimizer.").rpartition(".")
        if "[" not in key:
            tops.setdefault(owner, {})[key] = base
    leaves = {name.partition("@")[0] for name in stored}
    records = {leaf: record for leaf in leaves if (record := stored.get(stored_name(leaf, stored, number)))}
    shaped = {name: tuple(parameter.shape) for name, parameter, _ in optimized}
    unlike = {
        leaf.removeprefix(f"optimizer.{name}.")
        for name, shape in shaped.items()
        for leaf in [*tops.get(name, {}).values(), *(leaf for side in kept for leaf in plain.taken(side.get(name)))]
        if leaf in records and records[leaf].shape != shape
    }
    for name, parameter, optimizer in optimized:
        if rank is not None and name in rank["without"]:
            continue

        def given(leaf: str, name: str = name, parameter: torch.Tensor = parameter) -> torch.Tensor:
            if leaf not in records:
                raise RestoreError(f"the checkpoint lacks {leaf}, which its optimizer had")
            # The factors of a square matrix have its shape by chance: the factors of other matrices decide.
            alike = leaf.removeprefix(f"optimizer.{name}.") not in unlike
            return make(leaf, _like(leaf, parameter, records[leaf], common, alike))

        shard = partial(_as_shard, name, parameter)
        values = {key: given(leaf) for key, leaf in tops.get(name, {}).items()}
        for side in kept:
            values |= {key: plain.decode(value, given, shard) for key, value in side.get(name, {}).items()}
        if values or any(name in side for side in kept):
            yield optimizer, parameter, name, values


def _like(leaf: str, parameter: torch.Tensor, record: Stored, common: Mapping[str, Plain], alike: bool) -> LayoutLike:
    """Return the layout that a restored leaf gets; it is the parameter's own if the leaf is `alike`."""
    dtype = content_rules.dtype(record.name, record.dtype)
    device = common["devices"].get(leaf)
    placements = common["placements"].get(leaf)
    if isinstance(parameter, DTensor) and placements and len(placements) == parameter.device_mesh.ndim:
        cut = tuple(Replicate() if text == "whole" else Shard(int(text)) for text in placements)
        mesh = parameter.device_mesh
        on_mesh = parameter.device.type == mesh.device_type
        return LayoutLike(record.shape, dtype, str(parameter.device) if on_mesh else mesh.device_type, mesh, cut)
    if device is None and tuple(parameter.shape) == record.shape:
        return _of(parameter, dtype, parameter)
    if device is None and isinstance(parameter, DTensor):
        raise RestoreError(f"{leaf} is a shard of another shape than its parameter, which m5ws cannot rebuild")
    if alike and parameter.ndim and leaf not in common["whole"] and device == _OF_PARAMETER:
        return _of(parameter, dtype, parameter)
    return LayoutLike(record.shape, dtype, "cpu" if device == "cpu" else str(parameter.device))


def _of(tensor: torch.Tensor, dtype: torch.dtype, of: torch.Tensor | None = None) -> LayoutLike:
    mesh, cut = (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else (None, ())
    return LayoutLike(tuple(tensor.shape), dtype, str(tensor.device), mesh, tuple(cut), of)


def _as_shard(name: str, parameter: torch.Tensor, local: torch.Tensor, whole: tuple[int, ...] | None) -> torch.Tensor:
    """Return a wrapper tensor with the layout of its parameter. Raises RestoreError if it was sharded differently."""
    if not isinstance(parameter, DTensor):
        if whole is None:
            return local
    elif whole == tuple(parameter.shape) and local.shape == subclasses.local_of(parameter).shape:
        return sharded.sharded_like(parameter, local)
    raise RestoreError(
        f"the optimizer state of {name} consists of inner tensors with another sharding: it can only be restored on "
        "the layout that it was saved with",
        hint="Quantized state has scales for blocks of each rank's part, which cannot be sharded differently.",
    )


def as_it_is(state: Mapping[str, torch.Tensor], leaf: str, wanted: LayoutLike) -> torch.Tensor:
    """Return the live tensor of a leaf. Raises StateError if a rebuilt tensor would have another layout."""
    if (tensor := state.get(leaf)) is None:
        raise StateError(f"{leaf} is on other ranks alone, and a restore would give this rank the tensor too")
    if wanted != (now := _of(tensor, tensor.dtype)):
        raise StateError(f"{leaf} is {now}, and would be restored as {wanted}")
    return tensor
