"""The weights at the end of a script: a script may change them after its last step.

They are those of all modules that were called with gradients, and of all optimizers. They are read when the script
ends, or just before their module is deleted. So nothing stays in memory longer than without m5ws.
"""

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from m5ws.training.backends import tensor_names
from m5ws.training.compat import module_calls
from m5ws.training.fingerprint import fingerprint
from m5ws.training.observation import zero
from m5ws.training.observation.names import Labels, Names, local_parts

_MODEL = "model"
"""Beginning of the labels of modules."""
_KEPT = 64
"""Objects that are followed: those that were used last."""
_Owner = torch.nn.Module | torch.optim.Optimizer
_Named = Callable[[], Iterator[tuple[str, torch.Tensor]]]


@dataclass(eq=False)
class _Followed:
    """A module or an optimizer. `named` yields its tensors by name; None if they are not to be read.

    `label` is empty until the optimizer of a module is known. `read` has the identity of each tensor in `fingerprints`.
    """

    label: str
    named: _Named | None
    used: int
    fingerprints: dict[str, str] | None = None
    read: dict[str, str] = field(default_factory=dict)


class FinalWeights:
    """Follows the modules and optimizers of a training."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._thread = threading.get_ident()
        self._alive: dict[int, tuple[_Followed, weakref.finalize]] = {}  # type: ignore[type-arg]
        self._deleted: list[_Followed] = []
        self._step = 0
        self._identities = Labels()
        """A number for each tensor that was read. An id may be used again."""
        self._numbers = itertools.count()

    def begin_update(self) -> None:
        """Set the labels of the modules of a step. Of many objects, forget those that were used longest ago."""
        self._step += 1
        self._set_labels()
        alive = (followed for followed, _ in self._alive.copy().values())
        uses = sorted(followed.used for followed in (*self._deleted, *alive))
        if len(uses) <= _KEPT:
            return
        first = uses[-_KEPT]
        self._deleted = [followed for followed in self._deleted if followed.used >= first]
        # Objects may be deleted meanwhile, so a copy is read.
        for key, (followed, finalizer) in self._alive.copy().items():
            if followed.used < first and finalizer.detach() is not None:
                del self._alive[key]

    def follow_module(self, module: torch.nn.Module) -> None:
        """Follow a module with parameters that was called with gradients."""
        if not self._is_followed(module):
            # An engine may be deleted or not, as the garbage collector has it, and only it has its weights.
            self._follow(module, None if zero.is_engine(module) else _of_module(module))

    def follow_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Follow the parameters of an optimizer, which need not be in a module."""
        if not self._is_followed(optimizer):
            self._follow(optimizer, _of_groups(optimizer.param_groups), self._names.optimizer(optimizer))

    def take(self) -> dict[str, str] | None:
        """Return the fingerprints of all weights by name, at the end of the script; None if they are unknown."""
        self._set_labels()
        alive = [followed for followed, _ in self._alive.copy().values()]
        for followed in alive:
            self._read(followed)
        every = [*self._deleted, *alive]
        self.end()
        # A tensor has the name in the module that was used last; only one without a module has that in its optimizer.
        every.sort(key=lambda followed: (followed.label.startswith(_MODEL), followed.used), reverse=True)
        found, known = dict[str, str](), set[str]()
        for followed in every:
            new = {name for name, identity in followed.read.items() if identity not in known}
            known.update(followed.read.values())
            found |= {name: value for name, value in (followed.fingerprints or {}).items() if name in new}
        is_known = bool(found) and all(followed.fingerprints is not None for followed in every)
        return dict(sorted(found.items())) if is_known else None

    def end(self) -> None:
        """Follow nothing any more."""
        for _, finalizer in self._alive.copy().values():
            finalizer.detach()
        self._alive, self._deleted = {}, []

    def _set_labels(self) -> None:
        for followed, finalizer in self._alive.copy().values():
            if not followed.label and (alive := finalizer.peek()) is not None:
                followed.label = self._names.module(alive[0]) or ""

    def _is_followed(self, owner: _Owner) -> bool:
        """Return True if an object is followed, and note that it is used now."""
        if id(owner) not in self._alive:
            return False
        self._alive[id(owner)][0].used = self._step
        return True

    def _follow(self, owner: _Owner, named: _Named | None, label: str = "") -> None:
        followed = _Followed(label, named, self._step)
        finalizer = weakref.finalize(owner, self._read_last, id(owner))
        finalizer.atexit = False
        self._alive[id(owner)] = (followed, finalizer)

    def _read_last(self, key: int) -> None:
        """Read the weights of an object that is being deleted, where that is possible."""
        followed = self._alive.pop(key)[0]
        self._deleted.append(followed)
        # The garbage collector may delete it in any thread, and while operations are traced.
        if threading.get_ident() == self._thread and not module_calls.is_traced():
            with (
                module_calls.without_modes(),
                contextlib.suppress(Exception),
            ):  # The weights are unknown then, and the training goes on.
                self._read(followed)
        followed.named = None

    @torch.no_grad()
    def _read(self, followed: _Followed) -> None:
        if followed.named is None or not followed.label:
            return
        parts: dict[str, torch.Tensor] = {}
        for path, tensor in followed.named():
            own = local_parts(f"{followed.label}.{path}", tensor)
            parts |= own
            followed.read |= dict.fromkeys(own, self._identify(tensor))
        sums = fingerprint.sums(parts.values())
        followed.fingerprints = {name: f"{value:016x}" for name, value in zip(parts, sums, strict=True)}

    def _identify(self, tensor: torch.Tensor) -> str:
        if tensor not in self._identities:
            self._identities[tensor] = str(next(self._numbers))
        return self._identities[tensor] or ""


def _of_module(module: torch.nn.Module) -> _Named:
    """Return a function that yields a module's tensors by their paths, and does not keep the module alive."""
    paths = tensor_names.module_names(module)
    held = [(paths[path], tensors) for path, part in module.named_modules() for tensors in module_calls.held_by(part)]

    def named() -> Iterator[tuple[str, torch.Tensor]]:
        for path, tensors in held:
            for name, tensor in tensors.items():
                if tensor is not None:
                    yield tensor_names.join(path, name), tensor

    return named


def _of_groups(groups: Sequence[dict[str, Any]]) -> _Named:
    """Return a function that yields the parameters of an optimizer's groups by their places."""

    def named() -> Iterator[tuple[str, torch.Tensor]]:
        for number, group in enumerate(groups):
            for place, parameter in enumerate(group["params"]):
                yield f"parameter.group{number}.{place}", parameter

    return named
