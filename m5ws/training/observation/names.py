"""Labels of observed modules and optimizers, and names of their tensors.

Modules are numbered in the order of their first calls, optimizers in that of their first steps.
`model` is the first module with parameters that was called, `model2` the second. A parameter of `model` is named as in
a session, `model.blocks.0.weight`, and its state in the first optimizer `optimizer.blocks.0.weight.exp_avg`.
"""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from m5ws.errors import M5Error
from m5ws.training.backends import optimizer_state, tensor_names
from m5ws.training.backends.tensor_names import join
from m5ws.training.observation import samples
from m5ws.training.state import subclasses


class _Labels:
    """Labels by the identity of objects, which may define their own `==`. It keeps none of them alive."""

    def __init__(self) -> None:
        self._labels: dict[int, tuple[weakref.ref[Any], str | None]] = {}

    def __contains__(self, item: object) -> bool:
        known = self._labels.get(id(item))
        return known is not None and known[0]() is item

    def __getitem__(self, item: object) -> str | None:
        return self._labels[id(item)][1]

    def __setitem__(self, item: object, label: str | None) -> None:
        key = id(item)
        self._labels[key] = (weakref.ref(item, lambda _: self._labels.pop(key, None)), label)


class Names:
    """Labels of modules and optimizers. It keeps none of them alive."""

    def __init__(self) -> None:
        self._modules = _Labels()
        self._optimizers = _Labels()
        self._models = self._stepped = 0
        self._wrappers: set[str] = set()
        self.new: dict[str, str] = {}
        """Descriptions of the modules and optimizers that were labelled since this was last emptied."""

    def module(self, module: torch.nn.Module) -> str | None:
        """Return the label of a module, None if it has no parameters."""
        if module not in self._modules:
            label = None
            if next(module.parameters(), None) is not None:
                self._models += 1
                label = _numbered("model", self._models)
                self.new[label] = type(module).__qualname__
            self._modules[module] = label
        return self._modules[module]

    def optimizer(self, optimizer: torch.optim.Optimizer, within: torch.optim.Optimizer | None = None) -> str:
        """Return the label of an optimizer. The first one `within` another, which calls it, has the label of that."""
        if optimizer not in self._optimizers:
            label = self._optimizers[within] if within is not None else None
            if label is None or label in self._wrappers:
                self._stepped += 1
                label = _numbered("optimizer", self._stepped)
            elif within is not None:
                self._wrappers.add(label)
            self._optimizers[optimizer] = label
            tensors = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            elements = sum(parameter.numel() for parameter in tensors)
            self.new[label] = f"{type(optimizer).__qualname__}, {len(tensors)} tensors, {elements} elements"
        return self._optimizers[optimizer] or ""

    def tensors(
        self, modules: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer], *, initial: bool
    ) -> dict[str, torch.Tensor]:
        """Return this rank's parts of all parameters, buffers and optimizer states, by name.

        The `initial` ones are without buffers, which the first forward pass has changed.
        """
        tensors: dict[str, torch.Tensor] = {}
        parameters: dict[int, str] = {}
        for module in modules:
            label = self.module(module)
            for name, tensor in _named(module, label, buffers=not initial) if label is not None else ():
                if id(tensor) not in parameters:
                    parameters[id(tensor)] = name
                    tensors |= _parts(name, tensor)
        for optimizer in optimizers:
            label = self.optimizer(optimizer)
            for number, group in enumerate(optimizer.param_groups):
                for place, parameter in enumerate(group["params"]):
                    own = f"group{number}.{place}"
                    if id(parameter) not in parameters:
                        tensors |= _parts(f"{label}.parameter.{own}", parameter)
                    tensors |= _state(optimizer, parameter, label, parameters.get(id(parameter), own))
        return tensors


def _numbered(word: str, number: int) -> str:
    return word if number == 1 else f"{word}{number}"


def _named(module: torch.nn.Module, label: str, *, buffers: bool) -> Iterator[tuple[str, torch.Tensor]]:
    paths = tensor_names.module_names(module)
    for path, part in module.named_modules():
        own = part.named_buffers(recurse=False) if buffers else ()
        for leaf, tensor in (*part.named_parameters(recurse=False), *own):
            yield f"{label}.{join(paths[path], leaf)}", tensor


def _state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, label: str, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors in the state of one parameter."""
    values: Any = optimizer.state.get(parameter)
    if not values:
        return {}
    named: dict[str, torch.Tensor] = {}
    try:
        for path, tensor in optimizer_state.leaves(name.removeprefix("model."), values):
            named |= _parts(f"{label}{path.removeprefix('optimizer')}", tensor)
    except M5Error:
        # State that cannot be stored has no names. Its effect shows in the weights.
        return {}
    return named


def _parts(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors with the bytes of one tensor: its own part on this rank, or the inner ones of a wrapper."""
    wrapped = subclasses.parts(tensor)
    if wrapped is not None:
        return {f"{name}.{attribute}": samples.local(inner) for attribute, inner in wrapped.inner.items()}
    part = samples.local(tensor)
    return {} if part.is_meta or not subclasses.has_bytes(part) else {name: part}
