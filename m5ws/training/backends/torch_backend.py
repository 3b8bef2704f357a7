"""FSDP2, DDP, pipeline stages and single processes: parameters, buffers, optimizer state by name.

Names are as in the unwrapped model. A checkpoint of one wrapping, or of another number of ranks, therefore loads
into another. Optimizer state is named by its parameter, never by an index. A replica whose copies differ between ranks
is stored once a rank. Every rank stores its own part of a sharded tensor.
"""

import collections
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from m5ws.errors import M5Error, UsageError
from m5ws.records.checkpoint import Content
from m5ws.repository import contents
from m5ws.repository.contents import NAME_CHARACTERS, Parts
from m5ws.repository.objects import Objects
from m5ws.training.backends import ddp, layouts, optimizer_state, placement
from m5ws.training.backends.base import Box, Cut, Layout, NoCopyStager, Piece, Plain, Saved, Span, Stager
from m5ws.training.backends.tensor_names import (
    check_fit,
    check_same_on_all,
    module_names,
    own_name,
    shapes_of,
    stored_name,
    ties,
)
from m5ws.training.compat import facts, modules, sharded
from m5ws.training.runtime import collectives
from m5ws.training.runtime.collectives import Group
from m5ws.training.state import plain_state, subclasses
from m5ws.training.state.plain_state import RestoreError, StateError

_WHOLE = Span()
_BIT_FIELDS = re.compile(r"torch\.(u?int[1-7]|bits\w+)")
_Parameters = dict[str, torch.nn.Parameter]


class TorchBackend:
    """`base.Backend` of a model and its optimizers."""

    format: Literal["dcp/1"] = "dcp/1"

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None,
        objects: Mapping[str, Any] = {},
    ) -> None:
        facts.require((*modules.NAMED, *sharded.facts_of(model), *ddp.facts(model)))
        self._model = model
        self._optimizers = optimizer_state.as_optimizers(optimizer)
        self._modules = module_names(model)
        self._sharded = {name: item for name, item in objects.items() if _is_sharded(name, item)}
        self._given: dict[str, torch.Tensor] = {}

    def tensors(self) -> Iterator[Piece]:
        return pieces(self._state())

    def stage(self, copier: Stager) -> "StagedState":
        state = {name: _staged_copy(name, tensor, copier) for name, tensor in self._state().items()}
        common: dict[str, Plain] = {"groups": optimizer_state.groups(self._optimizers)}
        if self._optimizers:
            common["optimizer_kind"] = "+".join(type(optimizer).__name__ for optimizer in self._optimizers)
        parameters = self._parameters()
        extras = optimizer_state.extras(self._optimizer_state(parameters))
        without = sorted({name for name, *_ in self._optimized(parameters)} - extras.keys())
        return StagedState(state, common, self._layouts(), extras, without)

    def begin(self) -> Iterator[str]:
        for reason in ddp.fix_buckets(self._model):
            yield (
                "inexact restore: on 3 ranks or more, DDP adds gradients in another order in an attempt's first step, "
                f"and m5ws cannot prevent it here: {reason}. torch's `replicate` and `fully_shard` resume exactly"
            )

    def takes(self, path: str, tensor: torch.Tensor) -> bool:
        # Such as an EMA of a sharded model: its parts lie on all ranks.
        return isinstance(tensor, DTensor) and any(path.startswith(f"{name}.") for name in self._sharded)

    def given(self, path: str) -> torch.Tensor:
        if path not in self._given:
            raise RestoreError(f"the script's own state has no {path}, which the checkpoint has")
        return self._given.pop(path)

    def check(self) -> None:
        parameters = self._parameters()
        states, masters = list(self._states(parameters)), [parameter for _, parameter in self._masters(parameters)]
        for optimizer in self._optimizers:
            state = [(name, values) for name, parameter, values in states if parameter in optimizer.state]
            tensors = [tensor for name, values in state for _, tensor in optimizer_state.leaves(name, values)]
            owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            own = [parameter for parameter in masters if id(parameter) in owned]
            optimizer_state.check_complete(optimizer, [*tensors, *own])
            optimizer_state.check_own(optimizer, tensors)

    def layout(self) -> Layout:
        groups = (group for optimizer in self._optimizers for group in optimizer.param_groups)
        shapes = (f"{own_name(self._modules, path)} {[*buffer.shape]}" for path, buffer in self._model.named_buffers())
        return Layout(frozenset({*self._parameters(), *shapes}), tuple(len(group["params"]) for group in groups))

    def rehearse(self, objects: Objects, group: Group, apart: Collection[str] = ()) -> None:
        from m5ws.training.backends import shard_writer

        staged, number = self.stage(NoCopyStager()), collectives.rank(group)
        staged.check_copies(apart, group)
        named, own = staged.named(_differing_replicas(staged.state, objects, group), number)
        try:
            table = placement.agree(placement.describe(named), group)
            collections.deque(shard_writer.plan(named, table, number, collectives.world(group)), maxlen=0)
            stored: dict[str, layouts.Stored] = {tensor.name: tensor for tensor in table} | shard_writer.own_records(
                own
            )
            common, rank = staged.plain(objects, group)
            common = collectives.broadcast(common, group)
            check_fit(shapes_of(named), shapes_of(stored), group)
            live = partial(layouts.as_it_is, staged.state)
            optimized = list(self._optimized(self._parameters()))
            rebuilt = layouts.rebuild_state(optimized, stored, common, rank, number, live)
            made = {name: values for *_, name, values in rebuilt}
        except (ArithmeticError, AssertionError, LookupError, M5Error, RuntimeError, TypeError, ValueError) as error:
            hint = getattr(error, "hint", None)
            raise StateError(f"no checkpoint of this training could be restored: {error}", hint=hint) from error
        optimizer_state.check_made(made, dict(self._optimizer_state(self._parameters())))

    def load(
        self,
        objects: Objects,
        content: Content,
        parts: Parts,
        common: Mapping[str, Plain],
        rank: Mapping[str, Plain] | None,
        group: Group,
    ) -> None:
        from m5ws.training.backends import shard_reader

        if not {"groups", "devices", "whole", "placements", "optimizer"} <= common.keys():
            raise RestoreError("the checkpoint lacks the parameter groups and layouts of its optimizer")
        number = collectives.rank(group)
        table = contents.load_table(objects, content)
        stored: dict[str, layouts.Stored] = {tensor.name: tensor for tensor in table}
        for _, share in parts.near(number) if content.apart else ():
            stored |= {tensor.name: tensor for tensor in share.own}
        if rank is None:
            check_same_on_all(content.apart)
        optimized = list(self._optimized(self._parameters()))
        made = list(layouts.rebuild_state(optimized, stored, common, rank, number, lambda _, like: like.empty()))
        for optimizer in self._optimizers:
            optimizer.state.clear()
        for optimizer, parameter, _, values in made:
            optimizer.state[parameter] = values
        # An object gets its state by load_state_dict: its own state_dict may return copies.
        self._given = {name: torch.empty_like(shard) for name, shard in self._own_shards()}
        state = {**self._state(), **self._given}
        named = {stored_name(name, stored, number): tensor for name, tensor in state.items()}
        check_fit(shapes_of(named), shapes_of(stored), group)
        problem: Exception | None = None
        try:
            shard_reader.read(named, table, parts, number, objects)
        except (M5Error, OSError) as error:
            problem = error
        collectives.raise_on_all(problem, "read its part of the checkpoint", group)
        if self._optimizers:
            own = rank.get("groups") if rank is not None else None
            optimizer_state.restore_groups(self._optimizers, common["groups"] if own is None else own)

    # --- live tensors by name

    def _state(self) -> dict[str, torch.Tensor]:
        """Return all live tensors of the state, in order of names: a restored optimizer has another order."""
        self._reshard()
        parameters = self._parameters()
        state = {f"model.{name}": parameter.detach() for name, parameter in parameters.items()}
        for path, buffer in self._model.named_buffers():
            state[f"buffer.{own_name(self._modules, path)}"] = buffer.detach()
        for name, parameter in self._masters(parameters):
            state[f"master.{name}"] = parameter.detach()
        for name, values in self._optimizer_state(parameters):
            state |= optimizer_state.leaves(name, values)
        state |= self._own_shards()
        _check_kinds(state)
        return {name: state[name] for name in sorted(state)}

    def _reshard(self) -> None:
        """Bring FSDP2 modules back to their shards: after a forward pass alone, the root stays unsharded."""
        for part in self._model.modules():
            if isinstance(part, FSDPModule):
                part.reshard()

    def _parameters(self) -> _Parameters:
        """Return the model's parameters by name. With thousands of modules, torch takes long to list them."""
        return {own_name(self._modules, path): parameter for path, parameter in self._model.named_parameters()}

    def _own_shards(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the shards in objects of the session, live or copied."""
        for name, item in self._sharded.items():
            for path, shard in optimizer_state.within(item.state_dict(), name, self.takes):
                yield path, shard.detach()

    def _masters(self, parameters: _Parameters) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield parameters of the optimizers that are not the model's, such as fp32 masters of bf16 weights."""
        known = {id(parameter) for parameter in parameters.values()}
        for name, parameter, _ in self._optimized(parameters):
            if id(parameter) not in known:
                yield name, parameter

    def _optimizer_state(self, parameters: _Parameters) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each parameter's name and its optimizer state, in the order of the optimizers' groups."""
        for name, _, values in self._states(parameters):
            yield name, values

    def _states(self, parameters: _Parameters) -> Iterator[tuple[str, torch.Tensor, dict[str, Any]]]:
        for name, parameter, optimizer in self._optimized(parameters):
            values = optimizer.state.get(parameter)
            if values is not None:
                yield name, parameter, values

    def _optimized(self, parameters: _Parameters) -> Iterator[tuple[str, torch.Tensor, torch.optim.Optimizer]]:
        names = {id(parameter): name for name, parameter in parameters.items()}
        groups = [(optimizer, group) for optimizer in self._optimizers for group in optimizer.param_groups]
        for number, (optimizer, group) in enumerate(groups):
            for position, parameter in enumerate(group["params"]):
                # A parameter that the model lacks is named by its place in the optimizer.
                yield names.get(id(parameter)) or f"group{number}.{position}", parameter, optimizer

    def _layouts(self) -> dict[str, dict[str, Plain]]:
        """Return the layouts of leaves (`layouts.describe_leaves`), and names of tensors by kind. Raises StateError.

        `tied`: further names of tied tensors. `transient`: buffers that the model's state dict leaves out.
        """
        kinds = layouts.describe_leaves(self._states(self._parameters()))
        transient = {own_name(self._modules, path) for path in modules.transient_buffers(self._model)}
        tied = ties(self._model, self._modules).items()
        kinds["tied"] = {name: stored for name, stored in tied if name not in transient}
        kinds["transient"] = dict.fromkeys(transient.difference(map(str, kinds["tied"].values())), True)
        return kinds


def _check_kinds(state: Mapping[str, torch.Tensor]) -> None:
    """Raise StateError, with the reason, for a tensor that is no grid of elements of a known size, or its name."""
    for name, tensor in state.items():
        if "@" in plain_state.text(name, "a tensor's name") or len(name) > NAME_CHARACTERS:
            raise StateError(
                f"m5ws cannot store a tensor under the name {name[:200]!r}",
                hint=f'A name has at most {NAME_CHARACTERS} characters. "@" is for the copies of single ranks.',
            )
        if (reason := _obstacle(tensor)) is not None:
            raise StateError(
                f"{name} is {reason}, which m5ws cannot store",
                hint="Use optimizer state of plain tensors, or of a class with __tensor_flatten__ and its inverse; "
                "hold other such tensors outside the model's parameters and buffers, and their data in `state=`.",
            )


def _obstacle(tensor: torch.Tensor) -> str | None:
    if tensor.is_quantized:
        return "a quantized tensor"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.is_meta:
        return "on the meta device"
    if tensor.layout != torch.strided:
        return f"of the layout {str(tensor.layout).removeprefix('torch.')}"
    if _BIT_FIELDS.fullmatch(str(tensor.dtype)):
        return f"of {str(tensor.dtype).removeprefix('torch.')}"
    local = sharded.local_part(tensor) if isinstance(tensor, DTensor) else tensor
    if type(local) not in subclasses.PLAIN and not subclasses.has_bytes(local):
        return f"a {type(local).__module__}.{type(local).__qualname__} without bytes of its own"
    return None


def _is_sharded(name: str, item: Any) -> bool:
    """Return True if an object of the session has shards. Raises UsageError for an optimizer of shards."""
    if isinstance(item, torch.optim.Optimizer):
        if any(isinstance(parameter, DTensor) for group in item.param_groups for parameter in group["params"]):
            raise UsageError(
                f"{name} is an optimizer of sharded parameters",
                hint="Register all optimizers together: m5ws.session(model, optimizer=[muon, adamw], …).",
            )
        return False
    return any(True for _ in optimizer_state.within(item.state_dict(), name, lambda _, part: isinstance(part, DTensor)))


class CopiesDiffer(StateError):
    """Ranks that should hold the same part of a tensor hold different bits."""

    hint = (
        "Experts or stages that differ from rank to rank need different names. With tensor parallelism, gradients of "
        "parameters that are not sharded must be reduced over its ranks. Otherwise one rank computed another update, "
        "as a faulty device or a kernel that is not deterministic does: resume from an older checkpoint."
    )


@dataclass(frozen=True)
class StagedState:
    """`base.Staged`: tensors by name, copied or live, and the state that is no tensor."""

    state: Mapping[str, torch.Tensor]
    common: dict[str, Plain]
    layouts: dict[str, dict[str, Plain]]
    extras: optimizer_state.Extras
    without: list[str]

    def tensors(self) -> Iterator[Piece]:
        return pieces(self.state)

    def save(self, objects: Objects, group: Group, apart: Collection[str]) -> Saved:
        from m5ws.training.backends import shard_writer

        self.check_copies(apart, group)
        common, rank = self.plain(objects, group)
        number = collectives.rank(group)
        named, own = self.named(apart, number)
        table = placement.agree(placement.describe(named), group)
        # No collective follows: an error of this rank alone is reported by the caller.
        share, whole = shard_writer.write(named, own, table, number, collectives.world(group), objects)
        return Saved(share=share, whole=whole, table=table, apart=tuple(sorted(apart)), common=common, rank=rank)

    def check_copies(self, apart: Collection[str], group: Group) -> None:
        """Raise CopiesDiffer, on all ranks, if a sharded tensor is `apart`; collective."""
        torn = {name for name in apart if isinstance(self.state.get(name), DTensor)}
        # A rank without these tensors must fail too: it would wait for the other ranks in the next collective.
        if apart and (torn := collectives.broadcast(collectives.reduce(torn, set.union, group), group)):
            names = ", ".join(sorted(torn)[:5])
            raise CopiesDiffer(f"ranks hold copies of {names} that differ: no checkpoint could be exact")

    def named(self, apart: Collection[str], rank: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return the tensors by the names they are stored under, and replicas that differ by names of this rank."""
        named = {name: tensor for name, tensor in self.state.items() if name not in apart}
        return named, {f"{name}@{rank}": tensor for name, tensor in self.state.items() if name in apart}

    def plain(self, objects: Objects, group: Group) -> tuple[dict[str, Plain], dict[str, Plain]]:
        """Return the non-tensor state of all ranks, whole on rank 0, and of this rank; collective."""
        alike, own = optimizer_state.split_extras(self.extras, objects, group)
        common = {**self.common, **_on_all(self.layouts, objects, group), "optimizer": alike}
        # Stages of a pipeline may have groups of their own.
        groups = (
            {"groups": self.common["groups"]}
            if not collectives.equal_on_all(self.common["groups"], objects, group)
            else {}
        )
        return common, {"optimizer": own, "without": self.without, **groups}


def _staged_copy(name: str, tensor: torch.Tensor, copier: Stager) -> torch.Tensor:
    """Return the copier's copy of a tensor. The copy of a sharded tensor has a copy of this rank's part."""
    if not isinstance(tensor, DTensor):
        return copier.copy(name, tensor)
    local = sharded.local_part(tensor)
    copy = copier.copy(name, local)
    return tensor if copy is local else sharded.sharded_like(tensor, copy)


def _differing_replicas(state: Mapping[str, torch.Tensor], objects: Objects, group: Group) -> set[str]:
    """Return the names of replicas that have another shape or type on another rank; collective."""
    kinds: dict[str, Plain] = {
        name: f"{tensor.dtype} {tuple(tensor.shape)}"
        for name, tensor in state.items()
        if not isinstance(tensor, DTensor)
    }
    if collectives.equal_on_all(kinds, objects, group):
        return set()
    ranks = collectives.gather(kinds, group)
    return {name for name in kinds if any(rank.get(name, kinds[name]) != kinds[name] for rank in ranks)}


def _on_all(layouts: dict[str, dict[str, Plain]], objects: Objects, group: Group) -> dict[str, dict[str, Plain]]:
    """Return the layouts of leaves on any rank; collective."""
    if collectives.equal_on_all(layouts, objects, group):
        return layouts
    together: dict[str, dict[str, Plain]] = {kind: {} for kind in layouts}
    for rank in collectives.gather(layouts, group):
        for kind, leaves in rank.items():
            together[kind] |= leaves
    return together


def pieces(state: Mapping[str, torch.Tensor]) -> Iterator[Piece]:
    """Yield this rank's pieces of tensors by name. Raises StateError."""
    # Thousands of tensors have few layouts, and torch takes long to find a rank's part of one.
    boxes: dict[tuple[object, ...], tuple[Box | None, int, Cut | None]] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, DTensor):
            yield Piece(name, tensor, _WHOLE, "replica")
            continue
        layout = (tensor.shape, tensor.device_mesh, tensor.placements)
        if layout not in boxes:
            box = _box(name, tensor)
            boxes[layout] = box, math.prod(box.sizes) if box is not None else 0, placement.formula(tensor)
        box, count, cut = boxes[layout]
        if box is None:
            continue
        local = sharded.local_part(tensor)
        if local.numel() != count:
            raise StateError(
                f"a shard of {name} has {local.numel()} elements, where torch would have {count} ({tensor.placements})",
                hint="Shards that `DTensor.from_local` made must have the sizes that torch gives them.",
            )
        yield Piece(name, local, box, cut=cut)


def _box(name: str, tensor: DTensor) -> Box | None:
    """Return the place of this rank's part; None if the rank is not one of the tensor's. Raises StateError."""
    ranks = tensor.device_mesh.mesh
    for d, rule in enumerate(tensor.placements):
        # A process group sorts its ranks, and deals the parts in that order; torch's box of a part does not.
        if not rule.is_replicate() and bool((ranks.diff(dim=d) < 0).any()):
            raise StateError(
                f"{name} is sharded over ranks in descending order",
                hint="List the ranks of a DeviceMesh in ascending order along each dimension.",
            )
    if tensor.device_mesh.get_coordinate() is None:
        return None
    if any(placement.is_partial() for placement in tensor.placements):
        raise StateError(f"{name} has sums that are not reduced yet ({tensor.placements})")
    sizes, offsets = sharded.local_box(tensor.shape, tensor.device_mesh, tensor.placements)
    return Box(tuple(tensor.shape), offsets, sizes)
