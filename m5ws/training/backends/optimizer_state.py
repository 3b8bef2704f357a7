"""The state of optimizers: parameter groups, and by parameter tensors, numbers, and lists and mappings of both.

Each tensor in a parameter's state is a leaf: `NAME.exp_avg`, `NAME.factors.L`, `NAME.history[0]`. The inner tensors of
a wrapper tensor (`subclasses`) are leaves too: `NAME.exp_avg.codes`. Leaves are tensors of the content. Containers and
values that are no tensors are extras. Extras that are the same on all ranks with the parameter, such as step counts,
hold for any number of ranks; other extras are a rank's own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from m5ws.errors import UsageError
from m5ws.records import codec
from m5ws.repository.objects import Objects
from m5ws.training.backends.base import Plain
from m5ws.training.runtime import collectives
from m5ws.training.runtime.collectives import Group
from m5ws.training.state import plain_state, subclasses
from m5ws.training.state.plain_state import RestoreError, StateError

State = Iterable[tuple[str, dict[str, Any]]]
"""Each parameter's name, and its live state in the optimizer."""
Extras = dict[str, dict[str, Plain]]
"""By parameter and key, the state that is no tensor, encoded; tensors in it are named."""
_HINT = (
    "Register the optimizers that compute the updates (`optimizer=[muon, adamw]`), each with its state in `.state`. "
    "ZeroRedundancyOptimizer cannot be restored: use fully_shard, or each rank's whole optimizer."
)


def as_optimizers(given: Any) -> tuple[torch.optim.Optimizer, ...]:
    """Return the optimizers of a session, which takes none, one or several. Raises UsageError."""
    optimizers: tuple[Any, ...] = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    if given is None:
        return ()
    seen: set[int] = set()
    for optimizer in optimizers:
        kind = type(optimizer)
        if kind.__module__.partition(".")[0] == "deepspeed":
            raise UsageError(
                f"the {kind.__name__} is DeepSpeed's: m5ws.session(engine=engine) restores optimizer and engine",
                hint="Register the first result of deepspeed.initialize(): m5ws.session(engine=engine, …).",
            )
        if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "state")):
            raise UsageError(f"optimizer= takes torch optimizers, or a list of them, and not a {kind.__qualname__}")
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if own & seen:
            raise UsageError("two optimizers have the same parameter: m5ws cannot name their states")
        seen |= own
    return optimizers


def groups(optimizers: Sequence[torch.optim.Optimizer]) -> Plain:
    """Return the settings of the parameter groups. Raises StateError."""
    settings = [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]
    return plain_state.encode(settings, "optimizer.param_groups")


@torch.no_grad()
def restore_groups(optimizers: Sequence[torch.optim.Optimizer], stored: Plain) -> None:
    """Set the parameter groups to stored settings. Raises RestoreError if their number differs."""
    restored = plain_state.decode(stored)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if len(restored) != len(groups):
        raise RestoreError(f"the checkpoint has {len(restored)} parameter groups, the optimizer has {len(groups)}")
    for group, values in zip(groups, restored, strict=True):
        for key, value in values.items():
            # A tensor keeps its identity: a compiled step, or a scheduler, holds a reference to it.
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
    return type(value) in subclasses.PLAIN or (isinstance(value, torch.Tensor) and subclasses.parts(value) is None)


def within(value: object, path: str, wanted: plain_state.Take) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested state for which `wanted` is true, each with its path. Raises StateError."""
    tensors: dict[str, torch.Tensor] = {}

    def take(at: str, tensor: torch.Tensor) -> bool:
        if wanted(at, tensor):
            tensors[at] = tensor
        return True  # Never copied.

    plain_state.encode(value, path, take)
    yield from tensors.items()


def extras(state: State) -> Extras:
    """Return the state that is no tensor, and the containers of tensors. Raises StateError."""
    return {
        name: {
            key: plain_state.encode(value, f"optimizer.{name}.{key}", lambda *_: True)
            for key, value in values.items()
            if not _is_leaf(value)
        }
        for name, values in state
    }


def split_extras(extras: Extras, objects: Objects, group: Group) -> tuple[Extras, Extras]:
    """Return extras in two: the extras that are equal on all ranks with the parameter, and this rank's own; collective.

    The first are complete on rank 0, even for parameters that rank 0 does not have.
    """
    digests = {
        (name, key): objects.digest(codec.encode_plain(value))
        for name, values in extras.items()
        for key, value in values.items()
    }
    ranks = collectives.gather(digests, group)
    alike = {place for place, digest in digests.items() if all(rank.get(place, digest) == digest for rank in ranks)}

    def select(shared: bool) -> Extras:
        return {
            name: {key: value for key, value in values.items() if ((name, key) in alike) is shared}
            for name, values in extras.items()
        }

    shared = select(True)
    if any(rank.keys() - ranks[0].keys() for rank in ranks):
        for others in collectives.gather(shared, group):
            for name, values in others.items():
                shared.setdefault(name, {}).update(values)
    return shared, select(False)


def check_made(made: Mapping[str, Mapping[str, Any]], live: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise StateError unless state `made` of live tensors, as by a restore, has the form of the live state."""
    for name in sorted({*made, *live}):
        rebuilt, present = made.get(name), live.get(name)
        if rebuilt is None or present is None or _form(name, rebuilt) != _form(name, present):
            raise StateError(
                f"the optimizer state of {name} would change in a restore",
                hint="Optimizer state is numbers, text, tensors, and lists, tuples and dictionaries of these.",
            )


def _form(name: str, values: Mapping[str, Any]) -> tuple[bytes, set[str]]:
    """Return the non-tensor values in a parameter's state, as bytes, since NaN is not equal to itself; and the keys."""
    return codec.encode_plain(extras([(name, dict(values))])[name]), set(values)


def check_complete(optimizer: torch.optim.Optimizer, recorded: Iterable[torch.Tensor]) -> None:
    """Raise StateError if an optimizer holds tensors that are not `recorded`: no resume would restore them."""
    tensors = list(recorded)
    known = {id(tensor) for tensor in tensors}
    for path, inner in _within(optimizer):
        missing = [name for name, tensor in _tensors(inner.state, path) if id(tensor) not in known]
        if missing:
            raise StateError(
                f"the {type(optimizer).__name__} keeps optimizer state where m5ws does not find it: {len(missing)} "
                f"tensors of the {type(inner).__name__} in its `{path}`",
                hint=_HINT,
            )
    try:
        state = optimizer.state_dict()
    except RuntimeError:
        return  # Some optimizers have no state_dict(), or none on this rank: all of their state is in `.state`.
    held = sum(1 for key, value in state.items() if key != "param_groups" for _ in _tensors(value, str(key)))
    if held > len(tensors):
        raise StateError(
            f"the {type(optimizer).__name__} has {held} tensors in its state_dict(), but only {len(tensors)} "
            "in its `.state`: a resume would not be exact",
            hint=_HINT,
        )


def check_own(optimizer: torch.optim.Optimizer, recorded: Iterable[torch.Tensor]) -> None:
    """Raise StateError if an optimizer has attributes that are tensors of its parameters' shapes, such as moments."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    known = {id(tensor) for tensor in (*recorded, *parameters, *(parameter.grad for parameter in parameters))}
    shapes = {tuple(parameter.shape) for parameter in parameters if parameter.ndim}
    paths = [
        path
        for name, value in vars(optimizer).items()
        if name not in ("state", "param_groups", "defaults")
        for path, tensor in _tensors(value, name)
        if id(tensor) not in known and tuple(tensor.shape) in shapes
    ]
    if paths:
        raise StateError(
            f"the {type(optimizer).__name__} keeps tensors of its parameters' shapes outside its `.state`, where no "
            f"resume would restore them: {', '.join(paths[:3])}",
            hint="A torch optimizer keeps the state of a parameter in self.state[parameter].",
        )


def _within(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.optim.Optimizer]]:
    """Yield the optimizers inside an optimizer, each with the name of its attribute."""
    for name, value in vars(optimizer).items():
        members = (
            value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else (value,)
        )
        for member in members:
            if isinstance(member, torch.optim.Optimizer) and member is not optimizer:
                yield name, member


def _tensors(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested containers, and the inner tensors of wrapper tensors."""
    if isinstance(value, torch.Tensor):
        parts = subclasses.parts(value)
        yield from ((path, value),) if parts is None else ((f"{path}.{at}", inner) for at, inner in parts.inner.items())
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{path}.{key}" if isinstance(key, (str, int)) else path)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _tensors(item, f"{path}[{number}]")
