"""What optimizers have: parameter groups, and by parameter tensors, numbers, and lists and mappings of both.

A tensor is a leaf, wherever in a parameter's state it is: `NAME.exp_avg`, `NAME.factors.L`, `NAME.history[0]`. Of one
that is made of tensors (`subclasses`) these are the leaves: `NAME.exp_avg.codes`. Leaves are tensors of the content;
what holds them, and what is no tensor, are extras. Extras that are the same on all ranks
that have the parameter, as counts of steps are, hold for any number of ranks; the others are a rank's own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from m5ws.records import codec
from m5ws.repository.objects import Objects
from m5ws.training.backends.base import Plain
from m5ws.training.runtime import collectives
from m5ws.training.state import plain_state, subclasses
from m5ws.training.state.plain_state import RestoreError, StateError

State = Iterable[tuple[str, dict[str, Any]]]
"""Each parameter's name, and its state in the optimizer, live."""
Extras = dict[str, dict[str, Plain]]
"""By parameter and key, what is no tensor, encoded; tensors in it are named."""
_HINT = (
    "Give the session the optimizers that do the work (`optimizer=[muon, adamw]`), each with its state in `.state`. "
    "ZeroRedundancyOptimizer cannot be restored: use fully_shard, or each rank's whole optimizer."
)


def groups(optimizers: Sequence[torch.optim.Optimizer]) -> Plain:
    """Return the settings of the parameter groups. Raises StateError."""
    found = [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]
    return plain_state.encode(found, "optimizer.param_groups")


@torch.no_grad()
def restore_groups(optimizers: Sequence[torch.optim.Optimizer], stored: Plain) -> None:
    """Give the parameter groups their settings. Raises RestoreError if there are others."""
    found = plain_state.decode(stored)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if len(found) != len(groups):
        raise RestoreError(f"the checkpoint has {len(found)} parameter groups, the optimizer has {len(groups)}")
    for group, values in zip(groups, found, strict=True):
        for key, value in values.items():
            # A tensor stays the tensor it is: a compiled step, or a scheduler, holds on to it.
            if isinstance(group.get(key), torch.Tensor) and isinstance(value, torch.Tensor):
                group[key].copy_(value)
            else:
                group[key] = value


def leaves(name: str, values: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in a parameter's state, each with its name in the content. Raises StateError."""
    for key, value in values.items():
        path = f"optimizer.{name}.{key}"
        if _is_leaf(value):
            yield path, value
        elif isinstance(value, (torch.Tensor, list, tuple, Mapping)):
            yield from within(value, path, lambda *_: True)


def _is_leaf(value: object) -> bool:
    return isinstance(value, torch.Tensor) and subclasses.parts(value) is None


def within(value: object, path: str, wanted: plain_state.Take) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested state that are `wanted`, each with its path. Raises StateError."""
    found: dict[str, torch.Tensor] = {}

    def take(at: str, tensor: torch.Tensor) -> bool:
        if wanted(at, tensor):
            found[at] = tensor
        return True  # Not copied, whatever it is.

    plain_state.encode(value, path, take)
    yield from found.items()


def extras(state: State) -> Extras:
    """Return what is no tensor, and what holds tensors. Raises StateError."""
    return {
        name: {
            key: plain_state.encode(value, f"optimizer.{name}.{key}", lambda *_: True)
            for key, value in values.items()
            if not _is_leaf(value)
        }
        for name, values in state
    }


def parted(found: Extras, objects: Objects, group: "torch.distributed.ProcessGroup | None") -> tuple[Extras, Extras]:
    """Return extras in two: those that all ranks with the parameter have alike, and this rank's own; collective.

    The first are complete on rank 0, whatever parameters it has.
    """
    digests = {
        (name, key): objects.digest(codec.encode_plain(value))
        for name, values in found.items()
        for key, value in values.items()
    }
    ranks = collectives.gather(digests, group)
    alike = {place for place, digest in digests.items() if all(rank.get(place, digest) == digest for rank in ranks)}

    def those(wanted: bool) -> Extras:
        return {
            name: {key: value for key, value in values.items() if ((name, key) in alike) is wanted}
            for name, values in found.items()
        }

    shared = those(True)
    if any(rank.keys() - ranks[0].keys() for rank in ranks):
        for others in collectives.gather(shared, group):
            for name, values in others.items():
                shared.setdefault(name, {}).update(values)
    return shared, those(False)


def check_made(made: Mapping[str, Mapping[str, Any]], live: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise StateError unless state that was `made` of live tensors, as a restore makes it, has the live one's form."""
    for name in sorted({*made, *live}):
        one, other = made.get(name), live.get(name)
        if one is None or other is None or _form(name, one) != _form(name, other):
            raise StateError(
                f"the optimizer's state of {name} would not come back as it is",
                hint="Optimizer state is numbers, text, tensors, and lists, tuples and dictionaries of these.",
            )


def _form(name: str, values: Mapping[str, Any]) -> tuple[bytes, set[str]]:
    """Return the non-tensor values in a parameter's state, as bytes, since NaN is not equal to itself; and the keys."""
    return codec.encode_plain(extras([(name, dict(values))])[name]), set(values)


def check_complete(optimizer: torch.optim.Optimizer, recorded: Iterable[torch.Tensor]) -> None:
    """Raise StateError if an optimizer holds tensors that are not `recorded`: no resume would bring them back."""
    found = list(recorded)
    known = {id(tensor) for tensor in found}
    for path, inner in _within(optimizer):
        missing = [name for name, tensor in _tensors(inner.state, path) if id(tensor) not in known]
        if missing:
            raise StateError(
                f"the {type(optimizer).__name__} keeps optimizer state where m5ws does not find it: {len(missing)} "
                f"tensors of the {type(inner).__name__} in its `{path}`",
                hint=_HINT,
            )
    try:
        said = optimizer.state_dict()
    except RuntimeError:
        return  # Some have none, or none on this rank: what there is to find is in `.state`.
    held = sum(1 for key, value in said.items() if key != "param_groups" for _ in _tensors(value, str(key)))
    if held > len(found):
        raise StateError(
            f"the {type(optimizer).__name__} has {held} tensors in its state_dict(), of which m5ws finds {len(found)} "
            "in its `.state`: a resume would not be exact",
            hint=_HINT,
        )


def check_own(optimizer: torch.optim.Optimizer, recorded: Iterable[torch.Tensor]) -> None:
    """Raise StateError if an optimizer has, as attributes, tensors of its parameters' shapes: moments of its own."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    known = {id(tensor) for tensor in (*recorded, *parameters, *(parameter.grad for parameter in parameters))}
    shapes = {tuple(parameter.shape) for parameter in parameters if parameter.ndim}
    found = [
        path
        for name, value in vars(optimizer).items()
        if name not in ("state", "param_groups", "defaults")
        for path, tensor in _tensors(value, name)
        if id(tensor) not in known and tuple(tensor.shape) in shapes
    ]
    if found:
        raise StateError(
            f"the {type(optimizer).__name__} keeps tensors of its parameters' shapes outside its `.state`, where no "
            f"resume would bring them back: {', '.join(found[:3])}",
            hint="A torch optimizer keeps what it has of a parameter in self.state[parameter].",
        )


def _within(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.optim.Optimizer]]:
    """Yield the optimizers that an optimizer is made of, each with where it has it."""
    for name, value in vars(optimizer).items():
        members = (
            value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else (value,)
        )
        for member in members:
            if isinstance(member, torch.optim.Optimizer) and member is not optimizer:
                yield name, member


def _tensors(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested containers, and those that a tensor is made of."""
    if isinstance(value, torch.Tensor):
        parts = subclasses.parts(value)
        yield from ((path, value),) if parts is None else ((f"{path}.{at}", one) for at, one in parts.inner.items())
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{path}.{key}" if isinstance(key, (str, int)) else path)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _tensors(item, f"{path}[{number}]")
