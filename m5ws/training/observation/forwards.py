"""The forward passes of a step with gradients: samples of their arguments and outputs, and their losses."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from m5ws.records.exact import decode, encode
from m5ws.training.compat import tensors
from m5ws.training.observation import samples, zero
from m5ws.training.state import scalars

_READ = 16
"""Forward passes of a step of which values are read. The others are counted."""


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
    _losses: dict[int | type[torch.nn.Module], list[scalars.Reader | str]] = field(default_factory=dict)
    """Losses by the id of the module that returned them. A loss function may be made for one call, and freed: its type
    counts."""
    _noted: list[scalars.Reader | str] = field(default_factory=list)
    """Losses that a framework passed on. They have priority over those of modules."""
    _computed: set[StorageWeakRef] = field(default_factory=set)
    """Memory of the values that left modules: passed to another one, they are no data."""
    _evaluated: set[StorageWeakRef] = field(default_factory=set)
    """Memory of the values that left modules in the mode of evaluation."""

    def add(
        self,
        module: torch.nn.Module,
        passed: Sequence[torch.Tensor],
        output: Any,
        returned: Sequence[torch.Tensor],
        *,
        has_parameters: bool,
    ) -> None:
        """Add a call of a module that `has_parameters` or not, with the tensors in its arguments and in its output."""
        self.count += 1
        if has_parameters:
            self.modules[id(module)] = weakref.ref(module)
        if self.count > _READ:
            return

        for tensor in passed:
            if not tensor.requires_grad and not (self._computed and self._has_computed(tensor)):
                self.inputs.append(samples.take(tensor))
        self.outputs += [samples.take(tensor) for tensor in returned if tensor.requires_grad]
        self._computed.update(memory for tensor in returned for memory in samples.memory(tensor))
        loss = samples.loss(output)
        if loss is not None:
            key = id(module) if has_parameters else type(module)
            self._losses.setdefault(key, []).append(scalars.take("loss", samples.local(loss)))

    def _has_computed(self, tensor: torch.Tensor) -> bool:
        return not self._computed.isdisjoint(samples.memory(tensor))

    def add_evaluation(self, returned: Sequence[torch.Tensor]) -> None:
        """Note the output of a module in the mode of evaluation, which is no part of the step."""
        self._evaluated.update(memory for tensor in returned for memory in samples.memory(tensor))

    def are_evaluated(self, passed: Sequence[torch.Tensor]) -> bool:
        """Return True if modules in the mode of evaluation returned some of these arguments, and others none."""
        if not self._evaluated:
            return False
        used = {memory for tensor in passed for memory in samples.memory(tensor)}
        return not self._evaluated.isdisjoint(used) and self._computed.isdisjoint(used)

    def add_loss(self, loss: torch.Tensor) -> None:
        """Add a loss, a tensor of one element, that a framework passed on."""
        if loss.numel() == 1 and len(self._noted) < _READ:
            self._noted.append(scalars.take("loss", samples.local(loss.detach())))

    def loss(self) -> str | None:
        """Return the mean of the last module's losses as exact text, None if there are none.

        Waits for copies from a device.
        """
        read = self._noted or next(reversed(self._losses.values()), [])
        values = [decode(text(value)) for value in read]
        return encode(values[0] if len(values) == 1 else sum(values) / len(values)) if values else None

    def alive(self) -> list[torch.nn.Module]:
        """Return the modules of this step and the one before that still exist."""
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


def text(value: scalars.Reader | str) -> str:
    """Return the exact text of a number, which may wait for its copy from a device."""
    return value if isinstance(value, str) else value()
