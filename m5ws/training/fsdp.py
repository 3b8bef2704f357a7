"""FSDP2, DDP and plain single-process training: parameters, buffers and optimizer state by name, through DCP.

Names are those of the unwrapped model, so that a checkpoint of one wrapping, or of another number of ranks,
loads into another. Optimizer state is named by its parameter, never by an index.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from m5ws.errors import M5Error
from m5ws.records import Content
from m5ws.repository.objects import Objects
from m5ws.training import content as content_rules
from m5ws.training import control, optimizer_state
from m5ws.training.backend import Box, Piece, Plain, Saved
from m5ws.training.plain import RestoreError, StateError
from m5ws.training.staging import Copier

# What torch.compile and activation checkpointing put into the path of a parameter.
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")
_BIT_FIELDS = re.compile(r"torch\.(u?int[1-7]|bits\w+)")


class CopiesDiffer(M5Error):
    """Ranks that should hold the same part of a tensor do not."""

    hint = "With tensor parallelism, gradients of what is not cut over its ranks must be reduced over them."


class FsdpBackend:
    """`backend.Backend` of a model and an optimizer."""

    format: Literal["dcp/1"] = "dcp/1"

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self._model = model
        self._optimizer = optimizer
        self._modules = module_names(model)

    def tensors(self) -> Iterator[Piece]:
        return _pieces(self._state())

    def stage(self, copier: Copier) -> "_Staged":
        state = {name: _copied(name, tensor, copier) for name, tensor in self._state().items()}
        common: dict[str, Plain] = {"groups": optimizer_state.groups(self._optimizer), "devices": self._devices()}
        if self._optimizer is not None:
            common["optimizer_kind"] = type(self._optimizer).__name__
        return _Staged(state, common, optimizer_state.extras(self._optimizer_state()))

    def load(
        self,
        objects: Objects,
        content: Content,
        common: Mapping[str, Plain],
        rank: Mapping[str, Plain] | None,
        group: "torch.distributed.ProcessGroup | None",
    ) -> None:
        from m5ws.training import dcp

        if not {"groups", "devices"} <= common.keys():
            raise RestoreError("the checkpoint does not say which parameter groups and devices its optimizer had")
        if self._optimizer is not None:
            self._make_optimizer_state(content, common)
        state = self._state()
        stored = {tensor.name: tensor.shape for tensor in content.tensors}
        named = {_stored_name(name, stored, control.rank(group)): tensor for name, tensor in state.items()}
        _check_fit({name: tuple(tensor.shape) for name, tensor in named.items()}, stored)
        dcp.load(named, objects, content, group)
        if self._optimizer is not None:
            optimizer_state.restore_groups(self._optimizer, common["groups"])
            own = rank["optimizer"] if rank is not None else {}
            optimizer_state.restore_extras(self._optimizer_state(), common.get("optimizer", {}), own)

    # --- what there is, by name

    def _state(self) -> dict[str, torch.Tensor]:
        """Return all tensors of the state, live, in order of names: a restored optimizer has its keys in another."""
        self._reshard()
        state = {f"model.{name}": parameter.detach() for name, parameter in self._parameters().items()}
        for path, buffer in self._model.named_buffers():
            state[f"buffer.{self._unwrapped(path)}"] = buffer.detach()
        known = {id(parameter) for parameter in self._model.parameters()}
        for name, parameter in self._optimized():
            # What is trained beside the model, as fp32 copies of bf16 weights: the next step begins from these.
            if id(parameter) not in known:
                state[f"master.{name}"] = parameter.detach()
        for name, values in self._optimizer_state():
            state |= {f"optimizer.{name}.{key}": v for key, v in values.items() if isinstance(v, torch.Tensor)}
        for name, tensor in state.items():
            _check_kind(name, tensor)
        return dict(sorted(state.items()))

    def _reshard(self) -> None:
        """Bring FSDP2 modules back to their shards: after a forward pass alone, the root is left unsharded."""
        for part in self._model.modules():
            if isinstance(part, FSDPModule):
                part.reshard()

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        return {self._unwrapped(path): parameter for path, parameter in self._model.named_parameters()}

    def _unwrapped(self, path: str) -> str:
        module, _, leaf = path.rpartition(".")
        return _join(self._modules[module], leaf)

    def _optimizer_state(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each parameter's name and its optimizer state, in the order of the optimizer's groups."""
        for name, parameter in self._optimized():
            if self._optimizer is not None and parameter in self._optimizer.state:
                yield name, self._optimizer.state[parameter]

    def _optimized(self) -> Iterator[tuple[str, torch.Tensor]]:
        names = {id(parameter): name for name, parameter in self._parameters().items()}
        groups = self._optimizer.param_groups if self._optimizer is not None else []
        for number, group in enumerate(groups):
            for position, parameter in enumerate(group["params"]):
                # One that is not the model's is named by where the optimizer has it.
                yield names.get(id(parameter), f"group{number}.{position}"), parameter

    # --- optimizer state that is no tensor, and how to make the tensors anew

    def _devices(self) -> dict[str, str]:
        """Say of each state tensor that is no shard which kind of device it is on: Adam's step stays on the CPU."""
        return {
            f"optimizer.{name}.{key}": value.device.type
            for name, values in self._optimizer_state()
            for key, value in values.items()
            if isinstance(value, torch.Tensor) and not isinstance(value, DTensor)
        }

    def _make_optimizer_state(self, content: Content, common: Mapping[str, Plain]) -> None:
        """Make empty state as the stored one was. No step is taken: that would move parameters and draw numbers."""
        assert self._optimizer is not None
        state: dict[str, dict[str, torch.Tensor]] = {}
        parameters = dict(self._optimized())
        for record in content.tensors:
            if not record.name.startswith("optimizer."):
                continue
            name, _, key = record.name.removeprefix("optimizer.").rpartition(".")
            key = key.partition("@")[0]
            parameter = parameters.get(name)
            if parameter is None:
                raise RestoreError(f"the checkpoint has {record.name}, and the optimizer has no parameter {name!r}")
            dtype = content_rules.dtype(record.name, record.dtype)
            device = common["devices"].get(f"optimizer.{name}.{key}")
            if device is None and tuple(parameter.shape) != record.shape:
                raise RestoreError(
                    f"{record.name} is a shard of another shape than its parameter, which cannot be made"
                )
            state.setdefault(name, {})[key] = (
                torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
                if device is None
                else torch.zeros(record.shape, dtype=dtype, device="cpu" if device == "cpu" else parameter.device)
            )
        self._optimizer.state.clear()
        for name, parameter in parameters.items():
            if name in state:
                self._optimizer.state[parameter] = state[name]


@dataclass(frozen=True)
class _Staged:
    """`backend.Staged`: tensors by name, copied or live, and what is no tensor."""

    state: Mapping[str, torch.Tensor]
    common: dict[str, Plain]
    extras: optimizer_state.Extras

    def tensors(self) -> Iterator[Piece]:
        return _pieces(self.state)

    def save(
        self, objects: Objects, group: "torch.distributed.ProcessGroup | None", fingerprints: Mapping[str, str]
    ) -> Saved:
        from m5ws.training import dcp

        rank = control.rank(group)
        apart = {found.rpartition("@")[0] for found in fingerprints if found not in self.state and "@" in found}
        if torn := sorted(name for name in apart if isinstance(self.state.get(name), DTensor)):
            raise CopiesDiffer(f"ranks hold copies of {', '.join(torn[:5])} that differ: no checkpoint could be exact")
        # Replicas that differ, as running statistics do, have a name for each rank.
        named = {f"{name}@{rank}" if name in apart else name: tensor for name, tensor in self.state.items()}
        alike, own = optimizer_state.parted(self.extras, objects, group)
        tensors, blobs = dcp.save(named, objects, group)
        common = {**self.common, "optimizer": alike}
        return Saved(tensors=tensors, blobs=blobs, common=common, rank={"optimizer": own})


def _pieces(state: Mapping[str, torch.Tensor]) -> Iterator[Piece]:
    for name, tensor in state.items():
        if not isinstance(tensor, DTensor):
            yield Piece(name, tensor, copy="replica")
        elif tensor.device_mesh.get_coordinate() is not None:
            yield _sharded(name, tensor)


def _copied(name: str, tensor: torch.Tensor, copier: Copier) -> torch.Tensor:
    if not isinstance(tensor, DTensor):
        return copier.copy(name, tensor)
    local = tensor.to_local()
    copy = copier.copy(name, local)
    # Not `from_local`, which would bring a copy on the host back to the mesh's devices.
    return tensor if copy is local else DTensor(copy, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]


def module_names(model: torch.nn.Module) -> dict[str, str]:
    """Return what each module is called in the model without its wrappers."""
    parts = dict(model.named_modules())
    names = {"": ""}
    for path in parts:
        outer, _, leaf = path.rpartition(".")
        # Any model may have a part called `module`; DDP's is the only one that is a wrapping.
        wrapped = leaf in _WRAPPED or (leaf == "module" and isinstance(parts[outer], DistributedDataParallel))
        names[path] = names[outer] if wrapped or not path else _join(names[outer], leaf)
    return names


def _check_kind(name: str, tensor: torch.Tensor) -> None:
    """Raise StateError for a tensor that is more, or less, than elements of a known size in a grid."""
    layout, dtype = (str(kind).removeprefix("torch.") for kind in (tensor.layout, tensor.dtype))
    reasons = {
        "a quantized tensor": tensor.is_quantized,
        "a nested tensor": tensor.is_nested,
        "on the meta device": tensor.is_meta,
        f"of the layout {layout}": tensor.layout != torch.strided,
        f"of {dtype}": _BIT_FIELDS.fullmatch(str(tensor.dtype)) is not None,
    }
    if (reason := next((reason for reason, so in reasons.items() if so), None)) is not None:
        raise StateError(
            f"{name} is {reason}, which m5ws cannot store",
            hint="Hold such a thing outside the model's parameters and buffers, and what makes it anew in `state=`.",
        )


def _join(path: str, leaf: str) -> str:
    return f"{path}.{leaf}" if path else leaf


def _sharded(name: str, tensor: DTensor) -> Piece:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if any(placement.is_partial() for placement in tensor.placements):
        raise StateError(f"{name} has sums that are not reduced yet ({tensor.placements})")
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    coordinate: list[int] = list(tensor.device_mesh.get_coordinate() or [])
    spare = any(place.is_replicate() and at for place, at in zip(tensor.placements, coordinate, strict=True))
    box = Box(tuple(tensor.shape), tuple(offsets), tuple(sizes))
    return Piece(name, tensor.to_local(), box, copy="spare" if spare else "only")


def _stored_name(name: str, stored: Mapping[str, object], rank: int) -> str:
    """Return the name a tensor is stored by: its own, or this rank's where ranks differed, or else rank 0's."""
    return next((known for known in (name, f"{name}@{rank}", f"{name}@0") if known in stored), name)


def _check_fit(present: Mapping[str, tuple[int, ...]], stored: Mapping[str, tuple[int, ...]]) -> None:
    """Raise RestoreError unless both have the same tensors, of the same shapes."""
    problems = {
        "not in the checkpoint": present.keys() - stored.keys(),
        "not in the model or optimizer": {name for name in stored if "@" not in name} - present.keys(),
        "of another shape": {name for name in present.keys() & stored.keys() if present[name] != stored[name]},
    }
    said = [f"{problem}: {', '.join(sorted(names)[:5])}" for problem, names in problems.items() if names]
    if said:
        raise RestoreError(
            f"the checkpoint does not fit ({'; '.join(said)})",
            hint="The model, or which parameters the optimizer has, differs from when the checkpoint was made.",
        )
