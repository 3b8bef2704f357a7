"""The forward passes of a step with gradients: samples of their arguments and outputs."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from m5ws.training.compat import tensors
from m5ws.training.observation import samples, zero

_READ = 16
"""Forward passes of a step of which values are read. The other forward passes are counted."""


@dataclass
class Forwards:
    """The forward passes of one step, and the modules of the step before (`earlier`).

    Modules are held weakly, by their ids, since a script may delete its model.
    """

    earlier: dict[int, weakref.ref[torch.nn.Module]] = field(default_factory=dict)
    modules: dict[int, weakref.ref[torch.nn.Module]] = field(default_factory=dict)
    inputs: list[samples.Sample] = field(default_factory=list)
    outputs: list[samples.Sample] = field(default_factory=list)
    count: int = 0
    _computed: set[StorageWeakRef] = field(default_factory=set)
    """Memory of the values that left modules: passed to another module, they are no data."""

    def add(self, module: torch.nn.Module, passed: Sequence[torch.Tensor], returned: Sequence[torch.Tensor]) -> None:
        """Add a call of a module, with the tensors in its arguments and in its output."""
        self.count += 1
        self.modules[id(module)] = weakref.ref(module)
        if self.count > _READ:
            return
        for tensor in passed:
            if not tensor.requires_grad and self._computed.isdisjoint(samples.memory(tensor)):
                self.inputs.append(samples.take(tensor))
        self.outputs += [samples.take(tensor) for tensor in returned if tensor.requires_grad]
        self._computed.update(memory for tensor in returned for memory in samples.memory(tensor))

    def alive(self) -> list[torch.nn.Module]:
        """Return the modules of this step and the step before that still exist."""
        every = self.earlier | self.modules
        return [module for ref in every.values() if (module := ref()) is not None]

    def engine(self) -> torch.nn.Module | None:
        """Return the engine with ZeRO that made these forward passes, if it still exists."""
        for ref in self.modules.values():
            module = ref()
            if module is not None and zero.is_engine(module):
                return module
        return None


def leaves(tree: Any) -> Sequence[torch.Tensor]:
    """Return the tensors in nested containers.

    Other values are none of the training's: a module may return a time, a path or an object.
    """
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [leaf for leaf in tensors.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
