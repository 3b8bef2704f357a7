"""The weights at the end of a script: a script may change them after its last step.

They are those of all modules that were called with gradients, and of all optimizers. They are read when the script
ends. Those that end before are read just before their module is deleted, so that no module stays in memory longer than
without m5ws. A part that a module loses stays until the next step.
"""

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_KEPT = 256
"""Objects that are followed. Beyond, those that were used longest ago are forgotten."""
_Owner = torch.nn.Module | torch.optim.Optimizer
_Held = Mapping[str, torch.Tensor | None]


class _Part:
    """A part of a module with its path, and the dictionaries of its own tensors. It does not keep the part alive."""

    def __init__(self, path: str, part: torch.nn.Module, on_deletion: Callable[[Any], None]) -> None:
        self.path = path
        self.ref = weakref.ref(part, on_deletion)
        self.held: tuple[_Held, ...] = module_calls.held_by(part)


@dataclass(eq=False)
class _Followed:
    """A module with its parts, the module itself first, or an optimizer with its groups. Neither: it is not to be read.

    `label` is empty until the optimizer of a module is known. `tensors` has those of `fingerprints`, and the name of
    each: it keeps none of them alive.
    """

    label: str
    used: int
    parts: list[_Part] = field(default_factory=list)
    groups: Sequence[dict[str, Any]] = ()
    fingerprints: dict[str, str] | None = None
    tensors: list[tuple[str, weakref.ref[torch.Tensor]]] = field(default_factory=list)
    identities: dict[str, str] = field(default_factory=dict)

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors by name."""
        for part in self.parts:
            for held in part.held:
                for name, tensor in held.items():
                    if tensor is not None:
                        yield f"{self.label}.{tensor_names.join(part.path, name)}", tensor
        for number, group in enumerate(self.groups):
            for place, parameter in enumerate(group["params"]):
                yield f"{self.label}.parameter.group{number}.{place}", parameter


class FinalWeights:
    """Follows the modules and optimizers of a training."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._thread = threading.get_ident()
        self._alive: dict[int, tuple[_Followed, weakref.finalize]] = {}  # type: ignore[type-arg]
        self._deleted: list[_Followed] = []
        self._changed: list[int] = []
        """The keys in `_alive` of modules that have lost a part."""
        self._forgot = False
        self._step = 0
        self._identities = Labels()
        """A number for each tensor that was read. An id may be used again."""
        self._numbers = itertools.count()

    def begin_update(self) -> None:
        """Set the labels of the modules of a step, and let go of parts that a module has no longer."""
        self._step += 1
        self._set_labels()
        for key in {self._changed.pop() for _ in range(len(self._changed))}:
            followed, finalizer = self._alive.get(key, (None, None))
            # An optimizer may have the id of a module that was deleted.
            if followed is not None and followed.parts and finalizer and (alive := finalizer.peek()) is not None:
                followed.parts = self._parts_of(alive[0])
        if len(self._alive) + len(self._deleted) > _KEPT:
            self._forget_some()

    def follow_module(self, module: torch.nn.Module) -> None:
        """Follow a module with parameters that was called with gradients."""
        if not self._use(module):
            # An engine may be deleted or not, as the garbage collector has it, and only it has its weights.
            parts = [] if zero.is_engine(module) else self._parts_of(module)
            self._follow(module, _Followed("", self._step, parts=parts))

    def follow_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Follow the parameters of an optimizer, which need not be in a module."""
        if not self._use(optimizer):
            label = self._names.optimizer(optimizer)
            self._follow(optimizer, _Followed(label, self._step, groups=optimizer.param_groups))

    def take(self) -> dict[str, str] | None:
        """Return the fingerprints of all weights by name, at the end of the script; None if they are unknown."""
        self._set_labels()
        alive: list[_Followed] = []
        for followed, finalizer in self._alive.copy().values():
            owner = finalizer.peek()
            if owner is not None and followed.parts:
                followed.parts = self._parts_of(owner[0])
            self._try_to_read(followed, dict(followed.named()))
            alive.append(followed)
        for followed in self._deleted:
            # Its tensors may have another owner, and other values since.
            self._try_to_read(
                followed, {name: tensor for name, ref in followed.tensors if (tensor := ref()) is not None}
            )
        # A module without a label was deleted before any update: it was no part of the training.
        every = [followed for followed in (*self._deleted, *alive) if followed.label]
        is_known = not self._forgot and all(followed.fingerprints is not None for followed in every)
        self.end()
        # A tensor has the name in the module that was used last; only one without a module has that in its optimizer.
        every.sort(key=lambda followed: (followed.label.startswith(_MODEL), followed.used), reverse=True)
        found, known = dict[str, str](), set[str]()
        for followed in every:
            new = {name for name, identity in followed.identities.items() if identity not in known}
            known.update(followed.identities.values())
            found |= {name: value for name, value in (followed.fingerprints or {}).items() if name in new}
        return dict(sorted(found.items())) if found and is_known else None

    def end(self) -> None:
        """Follow nothing any more."""
        for _, finalizer in self._alive.copy().values():
            finalizer.detach()
        self._alive, self._deleted = {}, []

    def _forget_some(self) -> None:
        """Forget the objects that were used longest ago."""
        self._forgot = True
        alive = self._alive.copy()
        uses = sorted(followed.used for followed in (*self._deleted, *(followed for followed, _ in alive.values())))
        first = uses[-_KEPT // 2]
        self._deleted = [followed for followed in self._deleted if followed.used >= first]
        for key, (followed, finalizer) in alive.items():
            if followed.used < first and finalizer.detach() is not None:
                del self._alive[key]

    def _set_labels(self) -> None:
        # Objects may be deleted meanwhile, so a copy is read.
        for followed, finalizer in self._alive.copy().values():
            if not followed.label and (alive := finalizer.peek()) is not None:
                followed.label = self._names.module(alive[0]) or ""

    def is_followed(self, owner: _Owner) -> bool:
        """Return True if an object is followed."""
        return id(owner) in self._alive

    def _use(self, owner: _Owner) -> bool:
        """Return True if an object is followed, and note that it is used now."""
        known = self._alive.get(id(owner))
        if known is not None:
            known[0].used = self._step
        return known is not None

    def _follow(self, owner: _Owner, followed: _Followed) -> None:
        finalizer = weakref.finalize(owner, self._read_last, id(owner))
        finalizer.atexit = False
        self._alive[id(owner)] = (followed, finalizer)

    def _read_last(self, key: int) -> None:
        """Read the weights of an object that is being deleted, where that is possible."""
        followed = self._alive.pop(key)[0]
        self._deleted.append(followed)
        # The parts are still there, or the garbage collector deletes all of them. Otherwise the module was changed.
        is_whole = len({part.ref() is None for part in followed.parts[1:]}) < 2
        # The garbage collector may delete it in any thread, and while operations are traced.
        if is_whole and threading.get_ident() == self._thread and not module_calls.is_traced():
            module_calls.call_without_modes(self._try_to_read, followed, dict(followed.named()))
        followed.parts, followed.groups = [], ()

    def _try_to_read(self, followed: _Followed, tensors: Mapping[str, torch.Tensor]) -> None:
        """Read tensors. Without their memory, which a script may have freed, the weights are unknown."""
        try:
            self._read(followed, tensors)
        except Exception:  # noqa: BLE001  # whatever it is, the script goes on
            followed.fingerprints = None

    @torch.no_grad()
    def _read(self, followed: _Followed, tensors: Mapping[str, torch.Tensor]) -> None:
        if not followed.label or not tensors:
            return
        parts: dict[str, torch.Tensor] = {}
        for name, tensor in tensors.items():
            own = local_parts(name, tensor)
            parts |= own
            followed.identities |= dict.fromkeys(own, self._identify(tensor))
        followed.tensors = [(name, weakref.ref(tensor)) for name, tensor in tensors.items()]
        sums = fingerprint.sums(parts.values())
        found = {name: f"{value:016x}" for name, value in zip(parts, sums, strict=True)}
        followed.fingerprints = (followed.fingerprints or {}) | found

    def _identify(self, tensor: torch.Tensor) -> str:
        if tensor not in self._identities:
            self._identities[tensor] = str(next(self._numbers))
        return self._identities[tensor] or ""

    def _parts_of(self, module: torch.nn.Module) -> list[_Part]:
        paths, changed, key = tensor_names.module_names(module), self._changed, id(module)
        return [_Part(paths[path], part, lambda _: changed.append(key)) for path, part in module.named_modules()]
