"""Names of tensors: in the model without its wrappers, and in a checkpoint.

A name does not depend on the wrapping or the number of ranks. A tensor of which ranks had different copies is stored
once a rank, as "NAME@RANK".
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from m5ws.training.compat import modules
from m5ws.training.runtime import collectives
from m5ws.training.runtime.collectives import Group
from m5ws.training.state.plain_state import RestoreError


def module_names(model: torch.nn.Module) -> dict[str, str]:
    """Return each module's name in the model without its wrappers."""
    parts = dict(model.named_modules(remove_duplicate=False))
    names = {"": ""}
    for path in parts:
        outer, _, leaf = path.rpartition(".")
        # Any model may have a part called `module`; only DDP's is a wrapper.
        wrapped = leaf in modules.WRAPPERS or (leaf == "module" and isinstance(parts[outer], DistributedDataParallel))
        names[path] = names[outer] if wrapped or not path else join(names[outer], leaf)
    return names


def own_name(modules: Mapping[str, str], path: str) -> str:
    """Return the name of a parameter or buffer in the model without its wrappers; `modules` are `module_names`."""
    module, _, leaf = path.rpartition(".")
    return join(modules[module], leaf)


def ties(model: torch.nn.Module, modules: Mapping[str, str]) -> dict[str, str]:
    """Return the further names of tied parameters and buffers, each with the name that is stored."""
    first: dict[int, str] = {}
    listed = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    named = [(own_name(modules, path), tensor) for path, tensor in listed]
    return {name: first[id(tensor)] for name, tensor in named if first.setdefault(id(tensor), name) != name}


def unwrapped(path: str) -> str:
    """Return a parameter's path without the wrappers of compilation and recomputation.

    Paths of stored files come without a model, so `module_names` cannot serve them.
    """
    return ".".join(part for part in path.split(".") if part not in modules.WRAPPERS)


def join(path: str, leaf: str) -> str:
    """Return the path of a leaf below a path, which may be empty."""
    return f"{path}.{leaf}" if path else leaf


def stored_name(name: str, stored: Mapping[str, object], rank: int) -> str:
    """Return the stored name of a tensor: its own, or this rank's where ranks differed, or else rank 0's."""
    return next((known for known in (name, f"{name}@{rank}", f"{name}@0") if known in stored), name)


def check_same_on_all(apart: Iterable[str]) -> None:
    """Raise RestoreError if ranks had different parameters of one name: their owners are not known any more."""
    parameters = [name for name in apart if not name.startswith("buffer.")]
    if parameters:
        raise RestoreError(
            f"each rank had its own {', '.join(parameters[:5])}: the checkpoint needs as many ranks as saved it",
            hint="Parts of a model that differ from rank to rank, such as pipeline stages, need different names.",
        )


def shapes_of(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of live or stored tensors by name."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_fit(present: Mapping[str, tuple[int, ...]], stored: Mapping[str, tuple[int, ...]], group: Group) -> None:
    """Raise RestoreError, on all ranks, unless all ranks together have the stored tensors, of the same shapes.

    Collective. Names with "@" are of one rank alone. Stored names without "@" are equal on all ranks.
    """
    common = sorted(name for name in stored if "@" not in name)
    held = collectives.greatest([name in present for name in common], group)
    problems = {
        "not in the checkpoint": present.keys() - stored.keys(),
        "not in the model or optimizer": {name for name, is_held in zip(common, held, strict=True) if not is_held},
        "of another shape": {name for name in present.keys() & stored.keys() if present[name] != stored[name]},
    }
    listed = {problem: sorted(names)[:5] for problem, names in problems.items()}
    if not any(collectives.greatest([bool(names) for names in listed.values()], group)):
        return
    ranks = collectives.gather(listed, group)
    together = {problem: sorted({name for rank in ranks for name in rank[problem]})[:5] for problem in problems}
    reasons = [f"{problem}: {', '.join(names)}" for problem, names in together.items() if names]
    raise RestoreError(
        f"the checkpoint does not fit ({'; '.join(reasons)})",
        hint="The model, or the optimizer's set of parameters, has changed since the checkpoint was saved.",
    )
