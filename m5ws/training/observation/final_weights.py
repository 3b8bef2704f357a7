"""The weights that are alive when a script ends: a script may change them after its last step.

They are the parameters and buffers of the modules that were called with gradients or registered with a session, and all
other parameters that an optimizer stepped. Nothing is kept alive: of weights that were deleted before, the steps are
compared, and the weights of an optimizer whose steps nobody recorded are listed as unread.
"""

import weakref
from collections.abc import Iterable

import torch

from m5ws.training.fingerprint import fingerprint
from m5ws.training.observation import zero
from m5ws.training.observation.names import Names, describe, labels, local_parts, parameters_of

_Place = tuple[str, weakref.ref[torch.Tensor]]
"""The name of a parameter by its place in an optimizer, and the parameter."""


class FinalWeights:
    """Follows the modules and the stepped parameters of a process."""

    def __init__(self) -> None:
        self._modules, self._recorded = labels(), labels()
        self._optimizers = labels()
        """The optimizers that are followed, with their numbers of parameters."""
        self._places: dict[str, list[_Place]] = {}
        """The parameters of each optimizer that are read, by its label."""
        self._beside: list[tuple[str, list[_Place]]] = []
        """Descriptions and parameters of optimizers whose steps nobody records."""
        self._unread: set[str] = set()

    def follow_module(self, module: torch.nn.Module) -> None:
        """Follow a module with parameters."""
        if module not in self._modules:
            self._modules[module] = ""

    def is_followed(self, module: torch.nn.Module) -> bool:
        """Return True if a module is followed."""
        return module in self._modules

    def record(self, parameters: Iterable[torch.Tensor]) -> None:
        """Count parameters as recorded, whichever optimizer steps them."""
        for parameter in parameters:
            self._recorded[parameter] = ""

    def follow_optimizer(self, optimizer: torch.optim.Optimizer, names: Names, *, is_recorded: bool) -> None:
        """Follow the parameters that an optimizer steps, unless all of them are recorded already."""
        count = str(sum(len(group["params"]) for group in optimizer.param_groups))
        if optimizer in self._optimizers and self._optimizers[optimizer] == count:
            return
        self._optimizers[optimizer] = count
        parameters = parameters_of(optimizer)
        if all(parameter in self._recorded for parameter in parameters.values()):
            return
        places = [(place, weakref.ref(parameter)) for place, parameter in parameters.items()]
        self._places[names.optimizer(optimizer)] = places
        if not is_recorded:
            self._beside.append((describe(optimizer, parameters.values()), places))

    def miss(self, optimizer: torch.optim.Optimizer) -> None:
        """Note an optimizer whose steps and parameters are not recorded."""
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = ""
            self._unread.add(describe(optimizer, parameters_of(optimizer).values()))

    def unread(self) -> tuple[str, ...]:
        """Return descriptions of the optimizers that nobody recorded and whose parameters are not all alive."""
        deleted = {text for text, places in self._beside if any(parameter() is None for _, parameter in places)}
        return tuple(sorted(self._unread | deleted))

    @torch.no_grad()
    def take(self, names: Names) -> dict[str, str]:
        """Return the fingerprints of the weights that are alive, by name."""
        modules = list(self._modules)
        found: dict[str, str] = {}
        for engine in filter(zero.is_engine, modules):
            found |= zero.fingerprints(engine)
        tensors, known = names.of_modules(module for module in modules if not zero.is_engine(module))
        for label, places in self._places.items():
            for place, ref in places:
                parameter = ref()
                if parameter is not None and id(parameter) not in known:
                    known[id(parameter)] = place
                    tensors |= local_parts(f"{label}.parameter.{place}", parameter)
        # A framework may have freed the memory of a parameter.
        tensors = {name: tensor for name, tensor in tensors.items() if _has_memory(tensor)}
        sums = fingerprint.sums(list(tensors.values()))
        found |= {name: f"{value:016x}" for name, value in zip(tensors, sums, strict=True)}
        return dict(sorted(found.items()))


def _has_memory(tensor: torch.Tensor) -> bool:
    is_dense = tensor.layout == torch.strided and tensor.numel() > 0
    return not is_dense or tensor.untyped_storage().nbytes() > 0
