"""FSDP2, DDP, pipeline stages and single processes: parameters, buffers, optimizer state by name, through DCP.

Names are those of the unwrapped model, so that a checkpoint of one wrapping, or of another number of ranks,
loads into another. Optimizer state is named by its parameter, never by an index.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from m5ws.errors import M5Error, UsageError
from m5ws.records.checkpoint import Content
from m5ws.records.checkpoint import Tensor as TensorRecord
from m5ws.repository.objects import Objects
from m5ws.training.backends import ddp, layouts, optimizer_state
from m5ws.training.backends.base import Box, Piece, Plain, Saved
from m5ws.training.compat import facts, modules, tensors
from m5ws.training.runtime import collectives
from m5ws.training.state import plain_state as plain
from m5ws.training.state import subclasses
from m5ws.training.state.plain_state import RestoreError, StateError
from m5ws.training.state.staging import Copier, Live

_BIT_FIELDS = re.compile(r"torch\.(u?int[1-7]|bits\w+)")


class CopiesDiffer(M5Error):
    """Ranks that should hold the same part of a tensor do not."""

    hint = (
        "With tensor parallelism, gradients of what is not cut over its ranks must be reduced over them. "
        "Where all are, one rank's update was another one, as by a faulty device: resume from an older checkpoint."
    )


class FsdpBackend:
    """`backend.Backend` of a model and an optimizer."""

    format: Literal["dcp/1"] = "dcp/1"

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None,
        objects: Mapping[str, Any] = {},
    ) -> None:
        facts.require((*modules.NAMED, *tensors.sharded(model), *ddp.facts(model)))
        self._model = model
        self._optimizers = as_optimizers(optimizer)
        self._modules = module_names(model)
        self._sharded = {name: item for name, item in objects.items() if _is_sharded(name, item)}
        self._given: dict[str, torch.Tensor] = {}

    def tensors(self) -> Iterator[Piece]:
        return _pieces(self._state())

    def stage(self, copier: Copier) -> "_Staged":
        state = {name: _copied(name, tensor, copier) for name, tensor in self._state().items()}
        common: dict[str, Plain] = {"groups": optimizer_state.groups(self._optimizers)}
        if self._optimizers:
            common["optimizer_kind"] = "+".join(type(optimizer).__name__ for optimizer in self._optimizers)
        extras = optimizer_state.extras(self._optimizer_state())
        without = sorted({name for name, *_ in self._optimized()} - extras.keys())
        return _Staged(state, common, self._layouts(), extras, without)

    def begin(self) -> Iterator[str]:
        for reason in ddp.fix_buckets(self._model):
            yield (
                "inexact restore: on 3 ranks or more, DDP adds gradients in another order in an attempt's first step, "
                f"which cannot be mended here, since {reason}; torch's `replicate` and `fully_shard` resume exactly"
            )

    def takes(self, path: str, tensor: torch.Tensor) -> bool:
        # As an EMA of a sharded model: its parts lie on all ranks.
        return isinstance(tensor, DTensor) and any(path.startswith(f"{name}.") for name in self._sharded)

    def given(self, path: str) -> torch.Tensor:
        if path not in self._given:
            raise RestoreError(f"the script's own state has no {path}, which the checkpoint has")
        return self._given.pop(path)

    def check(self) -> None:
        self._state()
        self._layouts()
        for optimizer in self._optimizers:
            state = [(name, values) for name, parameter, values in self._states() if parameter in optimizer.state]
            found = [tensor for name, values in state for _, tensor in optimizer_state.leaves(name, values)]
            owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            masters = [parameter for _, parameter in self._masters() if id(parameter) in owned]
            optimizer_state.check_complete(optimizer, [*found, *masters])
            optimizer_state.check_own(optimizer, found)
        optimizer_state.extras(self._optimizer_state())
        optimizer_state.groups(self._optimizers)

    def rehearse(self, objects: Objects, group: "torch.distributed.ProcessGroup | None") -> None:
        from m5ws.training.backends import dcp

        staged, number = self.stage(Live()), collectives.rank(group)
        named = staged.named(_unlike(staged.state, objects, group), number)
        try:
            tensors = dcp.rehearse(named, objects, group)
            common, rank = staged.plain(objects, group)
            common = collectives.broadcast(common, group)
            shapes = {name: tuple(tensor.shape) for name, tensor in named.items()}
            stored = {tensor.name: tensor for tensor in tensors}
            _check_fit(shapes, {name: tensor.shape for name, tensor in stored.items()}, group)
            live = partial(layouts.as_it_is, staged.state)
            made = {name: values for *_, name, values in self._made_state(stored, common, rank, number, live)}
        except (ArithmeticError, AssertionError, LookupError, M5Error, RuntimeError, TypeError, ValueError) as error:
            hint = getattr(error, "hint", None)
            raise StateError(f"no checkpoint of this training could be restored: {error}", hint=hint) from error
        optimizer_state.check_made(made, dict(self._optimizer_state()))

    def load(
        self,
        objects: Objects,
        content: Content,
        common: Mapping[str, Plain],
        rank: Mapping[str, Plain] | None,
        group: "torch.distributed.ProcessGroup | None",
    ) -> None:
        from m5ws.training.backends import dcp

        if not {"groups", "devices"} <= common.keys():
            raise RestoreError("the checkpoint does not say which parameter groups and devices its optimizer had")
        stored = {tensor.name: tensor for tensor in content.tensors}
        number = collectives.rank(group)
        if rank is None:
            _check_same_on_all(stored)
        made = list(self._made_state(stored, common, rank, number, lambda _, like: like.zeros()))
        for optimizer in self._optimizers:
            optimizer.state.clear()
        for optimizer, parameter, _, values in made:
            optimizer.state[parameter] = values
        # An object takes its state by load_state_dict: what its own returns may be a copy.
        self._given = {name: torch.zeros_like(shard) for name, shard in self._own_shards()}
        state = {**self._state(), **self._given}
        named = {_stored_name(name, stored, number): tensor for name, tensor in state.items()}
        shapes = {name: tuple(tensor.shape) for name, tensor in named.items()}
        _check_fit(shapes, {name: tensor.shape for name, tensor in stored.items()}, group)
        dcp.load(named, objects, content, group)
        if self._optimizers:
            own = rank.get("groups") if rank is not None else None
            optimizer_state.restore_groups(self._optimizers, common["groups"] if own is None else own)

    # --- what there is, by name

    def _state(self) -> dict[str, torch.Tensor]:
        """Return all tensors of the state, live, in order of names: a restored optimizer has its keys in another."""
        self._reshard()
        state = {f"model.{name}": parameter.detach() for name, parameter in self._parameters().items()}
        for path, buffer in self._model.named_buffers():
            state[f"buffer.{self._unwrapped(path)}"] = buffer.detach()
        for name, parameter in self._masters():
            state[f"master.{name}"] = parameter.detach()
        for name, values in self._optimizer_state():
            state |= optimizer_state.leaves(name, values)
        state |= self._own_shards()
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

    def _own_shards(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the shards in objects of the session's, live or copied."""
        for name, item in self._sharded.items():
            for path, shard in optimizer_state.within(item.state_dict(), name, self.takes):
                yield path, shard.detach()

    def _masters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what is trained beside the model, as fp32 copies of bf16 weights: the next step begins from these."""
        known = {id(parameter) for parameter in self._model.parameters()}
        for name, parameter, _ in self._optimized():
            if id(parameter) not in known:
                yield name, parameter

    def _optimizer_state(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each parameter's name and its optimizer state, in the order of the optimizers' groups."""
        for name, _, values in self._states():
            yield name, values

    def _states(self) -> Iterator[tuple[str, torch.Tensor, dict[str, Any]]]:
        for name, parameter, optimizer in self._optimized():
            if parameter in optimizer.state:
                yield name, parameter, optimizer.state[parameter]

    def _optimized(self) -> Iterator[tuple[str, torch.Tensor, torch.optim.Optimizer]]:
        names = {id(parameter): name for name, parameter in self._parameters().items()}
        groups = [(optimizer, group) for optimizer in self._optimizers for group in optimizer.param_groups]
        for number, (optimizer, group) in enumerate(groups):
            for position, parameter in enumerate(group["params"]):
                # One that is not the model's is named by where the optimizer has it.
                yield names.get(id(parameter), f"group{number}.{position}"), parameter, optimizer

    # --- how to make optimizer state anew

    def _layouts(self) -> dict[str, dict[str, Plain]]:
        """Say of each leaf that does not lie as its parameter does how it lies. Raises StateError.

        `devices`: the kind of device of what is no shard (Adam's step stays on the CPU); `whole`: what is no shard
        although its parameter, of the same shape, is; `placements`: shards of another shape, or cut otherwise.
        """
        found: dict[str, dict[str, Plain]] = {"devices": {}, "whole": {}, "placements": {}}
        for name, parameter, values in self._states():
            for leaf, tensor in optimizer_state.leaves(name, values):
                if not isinstance(tensor, DTensor):
                    found["devices"][leaf] = tensor.device.type
                    if isinstance(parameter, DTensor) and tensor.shape == parameter.shape:
                        found["whole"][leaf] = True
                elif not isinstance(parameter, DTensor) or tensor.device_mesh != parameter.device_mesh:
                    raise StateError(f"{leaf} is cut over other ranks than its parameter, and could not be made anew")
                elif tensor.shape != parameter.shape or tensor.placements != parameter.placements:
                    found["placements"][leaf] = layouts.placements_text(leaf, tensor)
        return found

    def _made_state(
        self,
        stored: Mapping[str, TensorRecord],
        common: Mapping[str, Plain],
        rank: Mapping[str, Plain] | None,
        number: int,
        make: Callable[[str, layouts.Like], torch.Tensor],
    ) -> Iterator[tuple[torch.optim.Optimizer, torch.Tensor, str, dict[str, Any]]]:
        """Yield each parameter's optimizer, its name and its state as it was stored, of tensors that `make` gives.

        No step is taken: that would move parameters and draw numbers.
        """
        kept = [side for side in (common.get("optimizer", {}), (rank or {}).get("optimizer", {})) if side]
        held = {leaf for side in kept for leaf in plain.taken(side)}
        tops: dict[str, dict[str, str]] = {}
        for base in {name.partition("@")[0] for name in stored if name.startswith("optimizer.")} - held:
            owner, _, key = base.removeprefix("optimizer.").rpartition(".")
            if "[" not in key:
                tops.setdefault(owner, {})[key] = base
        leaves = {name.partition("@")[0] for name in stored}
        records = {leaf: found for leaf in leaves if (found := stored.get(_stored_name(leaf, stored, number)))}
        shaped = {name: tuple(parameter.shape) for name, parameter, _ in self._optimized()}
        unlike = {
            leaf.removeprefix(f"optimizer.{name}.")
            for name, shape in shaped.items()
            for leaf in [*tops.get(name, {}).values(), *(one for side in kept for one in plain.taken(side.get(name)))]
            if leaf in records and records[leaf].shape != shape
        }
        for name, parameter, optimizer in list(self._optimized()):
            if rank is not None and _had_none(name, rank):
                continue

            def given(leaf: str, name: str = name, parameter: torch.Tensor = parameter) -> torch.Tensor:
                if leaf not in records:
                    raise RestoreError(f"the checkpoint lacks {leaf}, which its optimizer had")
                # Factors of a square matrix have its shape by chance: those of others tell.
                alike = leaf.removeprefix(f"optimizer.{name}.") not in unlike
                return make(leaf, layouts.like(leaf, parameter, records[leaf], common, alike))

            shard = partial(layouts.as_shard, name, parameter)
            values = {key: given(leaf) for key, leaf in tops.get(name, {}).items()}
            for side in kept:
                values |= {key: plain.decode(value, given, shard) for key, value in side.get(name, {}).items()}
            if values or any(name in side for side in kept):
                yield optimizer, parameter, name, values


@dataclass(frozen=True)
class _Staged:
    """`backend.Staged`: tensors by name, copied or live, and what is no tensor."""

    state: Mapping[str, torch.Tensor]
    common: dict[str, Plain]
    layouts: dict[str, dict[str, Plain]]
    extras: optimizer_state.Extras
    without: list[str]

    def tensors(self) -> Iterator[Piece]:
        return _pieces(self.state)

    def save(
        self, objects: Objects, group: "torch.distributed.ProcessGroup | None", fingerprints: Mapping[str, str]
    ) -> Saved:
        from m5ws.training.backends import dcp

        apart = {found.rpartition("@")[0] for found in fingerprints if found not in self.state and "@" in found}
        if torn := sorted(name for name in apart if isinstance(self.state.get(name), DTensor)):
            raise CopiesDiffer(f"ranks hold copies of {', '.join(torn[:5])} that differ: no checkpoint could be exact")
        common, rank = self.plain(objects, group)
        tensors, blobs = dcp.save(self.named(apart, collectives.rank(group)), objects, group)
        return Saved(tensors=tensors, blobs=blobs, common=common, rank=rank)

    def named(self, apart: Collection[str], rank: int) -> dict[str, torch.Tensor]:
        """Return the tensors by the names they are stored under: replicas that differ have one for each rank."""
        return {f"{name}@{rank}" if name in apart else name: tensor for name, tensor in self.state.items()}

    def plain(
        self, objects: Objects, group: "torch.distributed.ProcessGroup | None"
    ) -> tuple[dict[str, Plain], dict[str, Plain]]:
        """Return the non-tensor state of all ranks and of this one; collective, and the first is whole on rank 0."""
        alike, own = optimizer_state.parted(self.extras, objects, group)
        common = {**self.common, **_on_all(self.layouts, objects, group), "optimizer": alike}
        # Stages of a pipeline may have groups of their own.
        groups = (
            {"groups": self.common["groups"]} if not collectives.alike(self.common["groups"], objects, group) else {}
        )
        return common, {"optimizer": own, "without": self.without, **groups}


def as_optimizers(given: Any) -> tuple[torch.optim.Optimizer, ...]:
    """Return the optimizers of a session, which takes none, one or several. Raises UsageError."""
    found: tuple[Any, ...] = () if given is None else tuple(given) if isinstance(given, (list, tuple)) else (given,)
    seen: set[int] = set()
    for optimizer in found:
        kind = type(optimizer)
        if kind.__module__.partition(".")[0] == "deepspeed":
            raise UsageError(
                f"the {kind.__name__} is DeepSpeed's: m5ws.session(engine=engine) restores it, with its engine",
                hint="Give the session what deepspeed.initialize() returned first: m5ws.session(engine=engine, …).",
            )
        if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "state")):
            raise UsageError(f"optimizer= takes torch optimizers, or a list of them, and not a {kind.__qualname__}")
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if own & seen:
            raise UsageError("two optimizers have the same parameter: which state is whose cannot be said by its name")
        seen |= own
    return found


def _is_sharded(name: str, item: Any) -> bool:
    """Return whether an object of the session's has shards. Raises UsageError for an optimizer of shards."""
    if isinstance(item, torch.optim.Optimizer):
        if any(isinstance(parameter, DTensor) for group in item.param_groups for parameter in group["params"]):
            raise UsageError(
                f"{name} is an optimizer of sharded parameters",
                hint="Give all optimizers together: m5ws.session(model, optimizer=[one, other], …).",
            )
        return False
    return any(True for _ in optimizer_state.within(item.state_dict(), name, lambda _, one: isinstance(one, DTensor)))


def _had_none(name: str, rank: Mapping[str, Plain]) -> bool:
    """Return True if this rank's optimizer had no state of a parameter, even where other ranks' had some."""
    # What an earlier m5ws wrote does not tell such a parameter from one that the rank did not have.
    return name in rank["without"] if "without" in rank else name not in rank["optimizer"]


def _unlike(
    state: Mapping[str, torch.Tensor], objects: Objects, group: "torch.distributed.ProcessGroup | None"
) -> set[str]:
    """Return the names of replicas that have another shape or type on another rank; collective."""
    kinds = {
        name: [list(tensor.shape), str(tensor.dtype)]
        for name, tensor in state.items()
        if not isinstance(tensor, DTensor)
    }
    if collectives.alike(kinds, objects, group):
        return set()
    ranks = collectives.gather(kinds, group)
    return {name for name in kinds if any(rank.get(name, kinds[name]) != kinds[name] for rank in ranks)}


def _on_all(
    layouts: dict[str, dict[str, Plain]], objects: Objects, group: "torch.distributed.ProcessGroup | None"
) -> dict[str, dict[str, Plain]]:
    """Return what any rank says of leaves; collective."""
    if collectives.alike(layouts, objects, group):
        return layouts
    together: dict[str, dict[str, Plain]] = {kind: {} for kind in layouts}
    for rank in collectives.gather(layouts, group):
        for kind, said in rank.items():
            together[kind] |= said
    return together


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
    return tensor if copy is local else tensors.sharded_like(tensor, copy)


def module_names(model: torch.nn.Module) -> dict[str, str]:
    """Return what each module is called in the model without its wrappers."""
    parts = dict(model.named_modules())
    names = {"": ""}
    for path in parts:
        outer, _, leaf = path.rpartition(".")
        # Any model may have a part called `module`; DDP's is the only one that is a wrapping.
        wrapped = leaf in modules.WRAPPERS or (leaf == "module" and isinstance(parts[outer], DistributedDataParallel))
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
    local = subclasses.local_of(tensor)
    if type(local) not in (torch.Tensor, torch.nn.Parameter) and not any(reasons.values()):
        kind = f"{type(local).__module__}.{type(local).__qualname__}"
        reasons[f"a {kind} without bytes of its own"] = not subclasses.has_bytes(local)
    if (reason := next((reason for reason, so in reasons.items() if so), None)) is not None:
        raise StateError(
            f"{name} is {reason}, which m5ws cannot store",
            hint="Use optimizer state of plain tensors, or of a class with __tensor_flatten__ and its inverse; "
            "hold other such tensors outside the model's parameters and buffers, and their data in `state=`.",
        )


def _join(path: str, leaf: str) -> str:
    return f"{path}.{leaf}" if path else leaf


def _sharded(name: str, tensor: DTensor) -> Piece:
    if any(placement.is_partial() for placement in tensor.placements):
        raise StateError(f"{name} has sums that are not reduced yet ({tensor.placements})")
    sizes, offsets = tensors.local_box(tensor.shape, tensor.device_mesh, tensor.placements)
    return Piece(name, tensor.to_local(), Box(tuple(tensor.shape), offsets, sizes))


def _stored_name(name: str, stored: Mapping[str, object], rank: int) -> str:
    """Return the name a tensor is stored by: its own, or this rank's where ranks differed, or else rank 0's."""
    return next((known for known in (name, f"{name}@{rank}", f"{name}@0") if known in stored), name)


def _check_same_on_all(stored: Mapping[str, object]) -> None:
    """Raise RestoreError if ranks had parameters of one name that differ: which is whose is not known any more."""
    apart = sorted({name.partition("@")[0] for name in stored if "@" in name and not name.startswith("buffer.")})
    if apart:
        raise RestoreError(
            f"each rank had its own {', '.join(apart[:5])}: the checkpoint only loads on as many ranks as made it",
            hint="Parts of a model that differ from rank to rank, as a pipeline's stages, need names that differ.",
        )


def _check_fit(
    present: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, tuple[int, ...]],
    group: "torch.distributed.ProcessGroup | None",
) -> None:
    """Raise RestoreError, on all ranks, unless all ranks together have the stored tensors, of the same shapes."""
    ranks = collectives.gather(dict(present), group)
    together = {name: shape for rank in ranks for name, shape in rank.items()}
    problems = {
        "not in the checkpoint": together.keys() - stored.keys(),
        "not in the model or optimizer": {name for name in stored if "@" not in name} - together.keys(),
        "of another shape": {
            name for rank in ranks for name in rank.keys() & stored.keys() if rank[name] != stored[name]
        },
    }
    said = [f"{problem}: {', '.join(sorted(names)[:5])}" for problem, names in problems.items() if names]
    if said:
        raise RestoreError(
            f"the checkpoint does not fit ({'; '.join(said)})",
            hint="The model, or which parameters the optimizer has, differs from when the checkpoint was made.",
        )
