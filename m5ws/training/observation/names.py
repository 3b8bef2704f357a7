"""Labels of observed modules and optimizers, and names of their tensors.

Modules are numbered in the order of their first calls, optimizers in the order of their first steps.
`model` is the first module with parameters that was called, `model2` the second. A parameter of `model` is named as in
a session, `model.blocks.0.weight`, and its state in the first optimizer `optimizer.blocks.0.weight.exp_avg`.

A later attempt may call modules and optimizers in another order. It knows a module by its type, sizes and place in an
optimizer, and an optimizer by its type and its first group, so that a group that a script adds later changes nothing.
"""

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from m5ws.errors import M5Error
from m5ws.training.backends import optimizer_state, tensor_names
from m5ws.training.observation import samples
from m5ws.training.state import subclasses

_OPTIMIZER = "optimizer"


def labels() -> MutableMapping[Any, str | None]:
    """Return labels by the identity of objects, which may define their own `==`. None is kept alive."""
    known: MutableMapping[Any, str | None] = WeakIdKeyDictionary()
    return known


class Names:
    """Labels of modules and optimizers. It keeps none of them alive."""

    def __init__(self, load_earlier: Callable[[], Mapping[str, str]] = dict) -> None:
        self._load_earlier = load_earlier
        self._earlier: Mapping[str, str] | None = None
        """Descriptions of the earlier attempts' modules and optimizers by label."""
        self._modules = labels()
        self._optimizers = labels()
        self._descriptions: dict[str, str] = {}
        """Descriptions by the labels that are in use."""
        self._stepped: list[tuple[str, weakref.ref[torch.optim.Optimizer]]] = []
        self._wrappers: set[str] = set()
        self.new: dict[str, str] = {}
        """Descriptions of the modules and optimizers that were labelled since this was last emptied."""

    def module(self, module: torch.nn.Module) -> str | None:
        """Return the label of a module, None if it has no parameters.

        The optimizers that update it have their labels before it does.
        """
        if module not in self._modules:
            parameters = list(module.parameters())
            place = self._place(parameters)
            self._modules[module] = self._label("model", module, parameters, place) if parameters else None
        return self._modules[module]

    def optimizer(self, optimizer: torch.optim.Optimizer, within: torch.optim.Optimizer | None = None) -> str:
        """Return the label of an optimizer. The first optimizer that `within` calls has the label of `within`."""
        if optimizer not in self._optimizers:
            label = self._optimizers[within] if within is not None else None
            parameters = optimizer.param_groups[0]["params"] if optimizer.param_groups else ()
            if label is None or label in self._wrappers:
                label = self._label(_OPTIMIZER, optimizer, parameters)
            else:
                self._wrappers.add(label)
                self.new.setdefault(label, describe(optimizer, parameters))
            self._optimizers[optimizer] = label
            self._stepped.append((label, weakref.ref(optimizer)))
        return self._optimizers[optimizer] or ""

    def _label(self, word: str, item: object, parameters: Sequence[torch.Tensor], place: str = "") -> str:
        """Return the earlier attempts' label for an object of this description, or a new label."""
        if self._earlier is None:
            self._earlier = self._load_earlier()
        known = {label: text for label, text in self._earlier.items() if _word(label) == word}
        sizes = describe(item, parameters)
        description = f"{sizes}, {place}" if place else sizes
        alike = [
            label
            for label, text in known.items()
            if label not in self._descriptions
            and (text == sizes or (text.startswith(f"{sizes}, ") and _fit(text[len(sizes) + 2 :], place)))
        ]
        exact = [label for label in alike if known[label] == description]
        found = exact if len(exact) == 1 else alike
        # Tensors and values of an uncertain object have names that are not compared.
        if len(found) == 1:
            label = found[0]
        else:
            taken = (label for label in (*known, *self._descriptions) if _word(label) == word)
            number = 1 + max((int(label[len(word) :] or 1) for label in taken), default=0)
            label = word if number == 1 else f"{word}{number}"
        self.new[label] = self._descriptions[label] = description
        return label

    def _place(self, parameters: Sequence[torch.Tensor]) -> str:
        """Return the first place of some parameters in an optimizer, "" if they are in none."""
        of_module = set(map(id, parameters))
        self._stepped = [(label, ref) for label, ref in self._stepped if ref() is not None]
        for label, ref in self._stepped:
            optimizer = ref()
            for number, group in enumerate(optimizer.param_groups if optimizer is not None else ()):
                for place, parameter in enumerate(group["params"]):
                    if id(parameter) in of_module:
                        return f"{label} group{number}.{place}"
        return ""

    def of_modules(
        self, modules: Iterable[torch.nn.Module], *, buffers: bool = True
    ) -> tuple[dict[str, torch.Tensor], dict[int, str]]:
        """Return this rank's parts of parameters and buffers by name, and the names of the tensors by their ids."""
        tensors: dict[str, torch.Tensor] = {}
        names: dict[int, str] = {}
        for module in modules:
            label = self.module(module)
            for name, tensor in _named(module, label, buffers=buffers) if label is not None else ():
                if id(tensor) not in names:
                    names[id(tensor)] = name
                    tensors |= local_parts(name, tensor)
        return tensors, names

    def tensors(
        self, modules: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer], *, initial: bool
    ) -> dict[str, torch.Tensor]:
        """Return this rank's parts of all parameters, buffers and optimizer states, by name.

        The `initial` parts are without buffers, which the first forward pass has changed.
        """
        tensors, names = self.of_modules(modules, buffers=not initial)
        for optimizer in optimizers:
            label = self.optimizer(optimizer)
            for place, parameter in parameters_of(optimizer).items():
                if id(parameter) not in names:
                    tensors |= local_parts(f"{label}.parameter.{place}", parameter)
                tensors |= _state(optimizer, parameter, label, names.get(id(parameter), place))
        return tensors


def parameters_of(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the parameters of an optimizer by their places: `group0.3`."""
    return {
        f"group{number}.{place}": parameter
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
    }


def describe(item: object, parameters: Collection[torch.Tensor]) -> str:
    """Return the type of an object, and the number and size of some parameters."""
    elements = sum(parameter.numel() for parameter in parameters)
    return f"{type(item).__qualname__}, {len(parameters)} tensors, {elements} elements"


def _fit(one: str, two: str) -> bool:
    """Return True unless two places are different places in the same optimizer: not all optimizers may have stepped."""
    return one == two or one.partition(" ")[0] != two.partition(" ")[0]


def _word(label: str) -> str:
    """Return a label without its number."""
    return label.rstrip("0123456789")


def _named(module: torch.nn.Module, label: str, *, buffers: bool) -> Iterator[tuple[str, torch.Tensor]]:
    modules = tensor_names.module_names(module)
    for path, tensor in (*module.named_parameters(), *(module.named_buffers() if buffers else ())):
        yield f"{label}.{tensor_names.own_name(modules, path)}", tensor


def _state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, label: str, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors in the state of one parameter."""
    values: Any = optimizer.state.get(parameter)
    if not values:
        return {}
    named: dict[str, torch.Tensor] = {}
    try:
        for path, tensor in optimizer_state.leaves(name.removeprefix("model."), values):
            named |= local_parts(f"{label}{path.removeprefix('optimizer')}", tensor)
    except M5Error:
        # State that cannot be stored has no names. Its effect shows in the weights.
        return {}
    return named


def local_parts(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors with the bytes of one tensor: its own part on this rank, or the inner tensors of a wrapper."""
    wrapped = subclasses.parts(tensor)
    if wrapped is not None:
        return {f"{name}.{attribute}": samples.local(inner) for attribute, inner in wrapped.inner.items()}
    part = samples.local(tensor)
    return {} if part.is_meta or not subclasses.has_bytes(part) else {name: part}
