"""Internals of torch's modules: attributes of wrappers, compiled modules, content of state dictionaries."""

import sys
from collections.abc import Iterator
from typing import Any

import torch

from m5ws.training.compat.facts import Fact

_COMPILED, _CHECKPOINTED = "_orig_mod", "_checkpoint_wrapped_module"
WRAPPERS = (_COMPILED, _CHECKPOINTED)
"""Attributes in which torch.compile and activation checkpointing hold their wrapped module."""


def is_compiled(module: torch.nn.Module) -> bool:
    """Return True for a module with a compiled forward pass, in place or by a wrapper."""
    in_place = getattr(module, "_compiled_call_impl", None) is not None
    return in_place or isinstance(module, torch.jit.ScriptModule) or type(module).__name__ == "OptimizedModule"


def transient_buffers(module: torch.nn.Module) -> Iterator[str]:
    """Yield the paths of buffers that `Module.state_dict` leaves out (`persistent=False`)."""
    for path, part in module.named_modules():
        yield from (f"{path}.{name}" if path else name for name in part._non_persistent_buffers_set)


def state_metadata(state: Any) -> Any:
    """Return the versions that `Module.state_dict` attaches to its result; loaders of older layouts read them."""
    return getattr(state, "_metadata", None)


def set_state_metadata(state: Any, value: Any) -> None:
    """Attach the versions to a state dictionary."""
    state._metadata = value


def _knows_transient() -> bool:
    module = torch.nn.Identity()
    module.register_buffer("name", torch.zeros(0), persistent=False)
    return list(transient_buffers(module)) == ["name"]


def _compile_wraps() -> bool:
    # Only torch.compile imports it; without it, no module is wrapped.
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    return frames is None or _COMPILED in frames.OptimizedModule._opt_mod_attributes


def _checkpoint_wraps() -> bool:
    wrapper: Any = sys.modules.get("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")
    return wrapper is None or f"{wrapper._CHECKPOINT_WRAPPED_MODULE}" == _CHECKPOINTED


NAMED = (
    Fact("torch", "OptimizedModule._orig_mod", _compile_wraps),
    Fact("torch", "CheckpointWrapper._checkpoint_wrapped_module", _checkpoint_wraps),
    Fact("torch", "Module._non_persistent_buffers_set", _knows_transient),
)
TRACED = (Fact("torch", "Module._compiled_call_impl", lambda: torch.nn.Identity()._compiled_call_impl is None),)
STATED = (
    Fact("torch", "Module.state_dict()._metadata", lambda: "" in state_metadata(torch.nn.Identity().state_dict())),
)
