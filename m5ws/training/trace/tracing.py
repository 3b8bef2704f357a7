"""The trace of single steps: the values of each module, each backward operation, each gradient and the optimizer, in
order.

Invariant: a traced step has the same bits as any other step. Hooks read and return nothing, draw no random number, and
exist in no other step. Each rank appends its trace to a file of its own (`records.traces`).
"""

import contextlib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from m5ws.records.launch import Trace
from m5ws.records.trace import TraceEntry
from m5ws.repository.ledger.spool import SpoolWriter, genesis
from m5ws.training.backends.tensor_names import module_names, own_name
from m5ws.training.compat import facts, modules
from m5ws.training.compat import tensors as tensor_internals
from m5ws.training.compat.tensors import tree_leaves
from m5ws.training.runtime.context import ActiveRank
from m5ws.training.state import rng
from m5ws.training.trace import values
from m5ws.training.trace.graph import Graph

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""An object's address in its default text: it differs in every process."""

_NOT_DETERMINISTIC = "does not have a deterministic implementation"


class Tracer:
    """Traces the steps that this rank's context names."""

    def __init__(
        self, active: ActiveRank, trace: Trace, model: torch.nn.Module, optimizers: Sequence[Any], generators: rng.Named
    ) -> None:
        facts.require((*tensor_internals.TRACED, *modules.TRACED, *modules.NAMED))
        self._trace = trace
        self._model = model
        self._optimizers = [base for optimizer in optimizers if (base := _base(optimizer)) is not None]
        self._generators = generators
        path = Path(active.context.spool_dir) / f"{active.rank}.trace"
        self._file = SpoolWriter(path, genesis(active.context.run, active.context.attempt, "trace"))
        self._left = trace.most
        self._names = {id(parameter): name for name, parameter in _parameters(model).items()}
        self._step: _Step | None = None
        if skipped := _compiled(model):
            active.notice("not-traced", f"not traced, since it is compiled: {', '.join(skipped[:5])}")

    @contextlib.contextmanager
    def trace_step(self, step: int) -> Iterator[None]:
        """Trace the block, if `step` is one of the traced steps."""
        if not self._trace.first <= step <= self._trace.last:
            yield
            return
        with contextlib.ExitStack() as hooks:
            self._step = _Step(step, self._generators, self._names, self._write)
            hooks.enter_context(_nondeterminism_warnings(self._step.warned))
            for remove in self._hooks(self._step):
                hooks.callback(remove)
            try:
                yield
            finally:
                self._step = None

    def batch(self, value: Any) -> None:
        """Append a batch that the loop received."""
        if self._step is not None:
            self._step.write("batch", given=values.batch(value))

    def _hooks(self, step: "_Step") -> Iterator[Callable[[], None]]:
        """Register all hooks, and yield the function that removes each."""
        for name, module in _watched(self._model).items():
            yield module.register_forward_pre_hook(step.enter(name), with_kwargs=True).remove
            yield module.register_forward_hook(step.leave(name)).remove
        for name, parameter in _parameters(self._model).items():
            if parameter.requires_grad and parameter.is_leaf:
                handle = parameter.register_post_accumulate_grad_hook(step.gradient(name))  # type: ignore[no-untyped-call]
                yield handle.remove
        for optimizer in self._optimizers:
            yield optimizer.register_step_pre_hook(step.update).remove

    def _write(self, seen: TraceEntry) -> None:
        if self._left > 0:
            self._left -= 1
            self._file.append(seen if self._left else TraceEntry(step=seen.step, kind="cut"))


class _Step:
    """The trace of one step. `names` has the parameters' names by id; the names of unsharded parameters are added."""

    def __init__(
        self, number: int, generators: rng.Named, names: dict[int, str], write: Callable[[TraceEntry], None]
    ) -> None:
        self._number = number
        self._generators = generators
        self._names = names
        self._write = write
        self._graph = Graph(self._ran, names)
        self._inside: list[tuple[str, dict[str, str]]] = []
        self._calls: Counter[tuple[str, str]] = Counter()

    def write(self, kind: Any, name: str = "", **fields: Any) -> None:
        """Append one entry, with the number of entries of its kind and name."""
        self._calls[kind, name] += 1
        self._write(TraceEntry(step=self._number, kind=kind, name=name, call=self._calls[kind, name], **fields))

    def enter(self, name: str) -> Callable[..., None]:
        def observe(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            tensors = tree_leaves((args, kwargs))
            # Operations that no returned module owns are code of the calling module.
            self._graph.claim(self._inside[-1][0] if self._inside else "", tensors)
            own: dict[str, Any] = {}
            for leaf, held in module.named_parameters(recurse=False, remove_duplicate=False):
                own[f"parameter {leaf}"] = held
                self._names.setdefault(id(held), f"{name}.{leaf}" if name else leaf)
            buffers = module.named_buffers(recurse=False, remove_duplicate=False)
            own |= {f"buffer {leaf}": held for leaf, held in buffers}
            states = self._random()
            given = values.named_digests("input", (args, kwargs)) | values.digests(own)
            self.write("enter", name, what=_description(module), given=given | states)
            self._inside.append((name, states))

        return observe

    def leave(self, name: str) -> Callable[..., None]:
        def observe(module: torch.nn.Module, _: Any, output: Any) -> None:
            before: dict[str, str] = {}
            # An interrupted pass, such as a recomputed pass, has left inner modules open.
            while self._inside and name in (module_name for module_name, _ in self._inside):
                closed, before = self._inside.pop()
                if closed == name:
                    break
            after = self._random()
            drew = tuple(key.partition(" ")[2] for key in after if before.get(key, after[key]) != after[key])
            ops = self._graph.claim(name, tree_leaves(output))
            made = values.named_digests("output", output)
            self.write("leave", name, what=_description(module), made=made, drew=drew, op=" ".join(dict.fromkeys(ops)))

        return observe

    def gradient(self, name: str) -> Callable[[torch.Tensor], None]:
        def observe(parameter: torch.Tensor) -> None:
            if parameter.grad is not None:
                self.write("gradient", name, made=values.digests({"gradient": parameter.grad}))

        return observe

    def update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Append the gradients and settings that the optimizer is about to use."""
        gradients: dict[str, Any] = {}
        settings: dict[str, str] = {}
        for number, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    known = self._names.get(id(parameter), f"group{number}.{place}")
                    gradients[f"gradient of {known}"] = parameter.grad
            for key, value in group.items():
                if key != "params":
                    settings |= {f"setting {key} of group {number}": _setting(value)}
        self.write("update", what=type(optimizer).__name__, given=values.digests(gradients) | settings)

    def warned(self, message: str) -> None:
        """Append torch's warning that an operation is not deterministic."""
        self.write("warning", self._inside[-1][0] if self._inside else "", op=message[:200])

    def _ran(self, module: str, count: int, op: str, given: Mapping[str, Any], made: Mapping[str, Any]) -> None:
        inputs, outputs = values.digests(given), values.digests(made)
        self._write(
            TraceEntry(step=self._number, kind="backward", name=module, call=count, op=op, given=inputs, made=outputs)
        )

    def _random(self) -> dict[str, str]:
        states = rng.digests(rng.capture(self._generators))
        return {f"generator {name}": digest for name, digest in states.items()}


def _base(optimizer: Any) -> torch.optim.Optimizer | None:
    """Return the optimizer that computes the updates, inside any wrappers."""
    while optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = getattr(optimizer, "optimizer", None)
    return optimizer


def _compiled(model: torch.nn.Module) -> list[str]:
    """Return the paths of modules that are compiled: a hook inside would compile them again."""
    return [path for path, module in model.named_modules() if modules.is_compiled(module)]


def _watched(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the traced modules by their names in the model without wrappers; of a wrapper, the inner module."""
    names = module_names(model)
    closed = _compiled(model)
    return {
        names[path]: module
        for path, module in model.named_modules()
        if not any(outer == path or not outer or path.startswith(f"{outer}.") for outer in closed)
    }


def _parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    modules = module_names(model)
    return {own_name(modules, path): parameter for path, parameter in model.named_parameters()}


def _description(module: torch.nn.Module) -> str:
    """Return a module's class, without FSDP's subclass of it, and its settings."""
    kind = next(base for base in type(module).__mro__ if not issubclass(base, FSDPModule))
    mode = "" if module.training else ", not training"
    return f"{kind.__module__}.{kind.__qualname__}({_ADDRESS.sub('', module.extra_repr())[:200]}{mode})"


def _setting(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return next(iter(values.digests({"": value}).values()))
    return repr(value)[:80]


@contextlib.contextmanager
def _nondeterminism_warnings(warned: Callable[[str], None]) -> Iterator[None]:
    """Call `warned` with each warning of torch about an operation that is not deterministic.

    Python has one list of filters and one `showwarning` for all threads. While a step is traced, warnings of other
    threads therefore pass through here too, and are shown as usual.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=f".*{_NOT_DETERMINISTIC}")
        shown = warnings.showwarning

        def show(message: Any, *more: Any, **named: Any) -> None:
            if _NOT_DETERMINISTIC in str(message):
                warned(str(message))
            shown(message, *more, **named)

        warnings.showwarning = show
        yield
