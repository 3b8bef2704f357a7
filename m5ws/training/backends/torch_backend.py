"""FSDP2, DDP, pipeline stages and single processes: parameters, buffers, optimizer state by name, through DCP.

Names are as in the unwrapped model. A checkpoint of one wrapping, or of another number of ranks, therefore loads
into another. Optimizer state is named by its parameter, never by an index.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from m5ws.errors import M5Error, UsageError
from m5ws.records.checkpoint import Content
from m5ws.records.checkpoint import Tensor as TensorRecord
from m5ws.repository.objects import Objects
from m5ws.training.backends import ddp, layouts, optimizer_state
from m5ws.training.backends.base import Layout, NoCopyStager, Piece, Plain, Stager
from m5ws.training.backends.tensor_names import check_fit, check_same_on_all, module_names, own_name, stored_name, ties
from m5ws.training.backends.torch_staged import StagedState, check_kinds, differing_replicas, pieces, staged_copy
from m5ws.training.compat import facts, modules, sharded
from m5ws.training.runtime import collectives
from m5ws.training.state import plain_state as plain
from m5ws.training.state.plain_state import RestoreError, StateError

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

    def stage(self, copier: Stager) -> StagedState:
        state = {name: staged_copy(name, tensor, copier) for name, tensor in self._state().items()}
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
        return Layout(frozenset(self._parameters()), tuple(len(group["params"]) for group in groups))

    def rehearse(self, objects: Objects, group: "torch.distributed.ProcessGroup | None") -> None:
        from m5ws.training.backends import dcp

        staged, number = self.stage(NoCopyStager()), collectives.rank(group)
        named = staged.named(differing_replicas(staged.state, objects, group), number)
        try:
            tensors = dcp.rehearse(named, objects, group)
            common, rank = staged.plain(objects, group)
            common = collectives.broadcast(common, group)
            shapes = {name: tuple(tensor.shape) for name, tensor in named.items()}
            stored = {tensor.name: tensor for tensor in tensors}
            check_fit(shapes, {name: tensor.shape for name, tensor in stored.items()}, group)
            live = partial(layouts.as_it_is, staged.state)
            made = {name: values for *_, name, values in self._made_state(stored, common, rank, number, live)}
        except (ArithmeticError, AssertionError, LookupError, M5Error, RuntimeError, TypeError, ValueError) as error:
            hint = getattr(error, "hint", None)
            raise StateError(f"no checkpoint of this training could be restored: {error}", hint=hint) from error
        optimizer_state.check_made(made, dict(self._optimizer_state(self._parameters())))

    def load(
        self,
        objects: Objects,
        content: Content,
        common: Mapping[str, Plain],
        rank: Mapping[str, Plain] | None,
        group: "torch.distributed.ProcessGroup | None",
    ) -> None:
        from m5ws.training.backends import dcp

        if not {"groups", "devices", "whole", "placements", "optimizer"} <= common.keys():
            raise RestoreError("the checkpoint lacks the parameter groups and layouts of its optimizer")
        stored = {tensor.name: tensor for tensor in content.tensors}
        number = collectives.rank(group)
        if rank is None:
            check_same_on_all(stored)
        made = list(self._made_state(stored, common, rank, number, lambda _, like: like.empty()))
        for optimizer in self._optimizers:
            optimizer.state.clear()
        for optimizer, parameter, _, values in made:
            optimizer.state[parameter] = values
        # An object gets its state by load_state_dict: its own state_dict may return copies.
        self._given = {name: torch.empty_like(shard) for name, shard in self._own_shards()}
        state = {**self._state(), **self._given}
        named = {stored_name(name, stored, number): tensor for name, tensor in state.items()}
        shapes = {name: tuple(tensor.shape) for name, tensor in named.items()}
        check_fit(shapes, {name: tensor.shape for name, tensor in stored.items()}, group)
        dcp.load(named, objects, content, group)
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
        check_kinds(state)
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

    # --- rebuilding optimizer state

    def _layouts(self) -> dict[str, dict[str, Plain]]:
        """Return the layout of each leaf whose layout differs from its parameter's. Raises StateError.

        `devices`: the device of leaves without shards (Adam's step stays on the CPU). `whole`: leaves without
        shards whose parameter, of the same shape, is sharded. `placements`: shards of another shape, or sharded
        differently. `tied`: further names of tied tensors. `transient`: buffers that the model's state dict leaves out.
        """
        kinds: dict[str, dict[str, Plain]] = {"devices": {}, "whole": {}, "placements": {}}
        transient = {own_name(self._modules, path) for path in modules.transient_buffers(self._model)}
        tied = ties(self._model, self._modules).items()
        kinds["tied"] = {name: stored for name, stored in tied if name not in transient}
        kinds["transient"] = dict.fromkeys(transient.difference(map(str, kinds["tied"].values())), True)
        for name, parameter, values in self._states(self._parameters()):
            for leaf, tensor in optimizer_state.leaves(name, values):
                if not isinstance(tensor, DTensor):
                    kinds["devices"][leaf] = layouts.device(tensor, parameter)
                    if isinstance(parameter, DTensor) and tensor.shape == parameter.shape:
                        kinds["whole"][leaf] = True
                elif not isinstance(parameter, DTensor) or tensor.device_mesh != parameter.device_mesh:
                    raise StateError(f"{leaf} and its parameter are on different ranks: a restore could not rebuild it")
                elif tensor.shape != parameter.shape or tensor.placements != parameter.placements:
                    kinds["placements"][leaf] = layouts.placements_text(leaf, tensor)
        return kinds

    def _made_state(
        self,
        stored: Mapping[str, TensorRecord],
        common: Mapping[str, Plain],
        rank: Mapping[str, Plain] | None,
        number: int,
        make: Callable[[str, layouts.LayoutLike], torch.Tensor],
    ) -> Iterator[tuple[torch.optim.Optimizer, torch.Tensor, str, dict[str, Any]]]:
        """Yield each parameter's optimizer, its name and its stored state, with tensors that `make` returns.

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
        optimized = list(self._optimized(self._parameters()))
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
                return make(leaf, layouts.like(leaf, parameter, records[leaf], common, alike))

            shard = partial(layouts.as_shard, name, parameter)
            values = {key: given(leaf) for key, leaf in tops.get(name, {}).items()}
            for side in kept:
                values |= {key: plain.decode(value, given, shard) for key, value in side.get(name, {}).items()}
            if values or any(name in side for side in kept):
                yield optimizer, parameter, name, values


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
