"""The operations of the backward pass, each assigned to the module whose forward pass made it.

When a module returns, its operations lead from its inputs to its outputs and belong to no inner module. Hooks read an
operation's gradients after it has run, and change nothing. https://docs.pytorch.org/docs/stable/notes/autograd.html
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from m5ws.training.compat.tensors import leaf_of

Ran = Callable[[str, int, str, Mapping[str, Any], Mapping[str, Any]], None]
"""Called with (module, count of that operation in it, operation, gradients that went in, gradients that came out)."""


class Graph:
    """The operations of one step. `names` gives the parameters' names by the ids of their tensors."""

    def __init__(self, ran: Ran, names: Mapping[int, str]) -> None:
        self._ran = ran
        self._names = names
        # References keep the identity of the nodes; autograd frees the saved tensors when the backward pass is over.
        self._known: dict[Any, None] = {}
        self._counts: Counter[tuple[str, str]] = Counter()

    def claim(self, module: str, tensors: Iterable[Any]) -> list[str]:
        """Assign the unassigned operations that lead to `tensors` to `module`; return their names."""
        waiting = [tensor.grad_fn for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.grad_fn]
        names = []
        while waiting:
            node = waiting.pop()
            if node in self._known or leaf_of(node) is not None:
                continue
            self._known[node] = None
            self._watch(module, node)
            names.append(node.name())
            waiting += [inner for inner, _ in reversed(node.next_functions) if inner is not None]
        return names

    def _watch(self, module: str, node: Any) -> None:
        op = node.name()
        self._counts[module, op] += 1
        count = self._counts[module, op]

        def observe(out: Sequence[Any], given: Sequence[Any]) -> None:
            self._ran(module, count, op, _numbered(given), self._labelled(node.next_functions, out))

        node.register_hook(observe)

    def _labelled(self, following: Sequence[tuple[Any, int]], gradients: Sequence[Any]) -> dict[str, Any]:
        """Return gradients by the parameters that own them, if they have one."""
        if len(following) != len(gradients):
            return _numbered(gradients)
        gradients_by_name: dict[str, Any] = {}
        for place, ((node, _), gradient) in enumerate(zip(following, gradients, strict=True)):
            owner = self._names.get(id(leaf_of(node)))
            gradients_by_name[f"gradient of {owner}" if owner else f"gradient {place}"] = gradient
        return {name: gradient for name, gradient in gradients_by_name.items() if gradient is not None}


def _numbered(gradients: Sequence[Any]) -> dict[str, Any]:
    return {f"gradient {place}": gradient for place, gradient in enumerate(gradients) if gradient is not None}
