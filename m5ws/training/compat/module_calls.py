"""Calls of modules: a function around every outermost one. And a function before each call of `backward()`.

torch's own hooks of all modules cost six times as much, since they are called for each inner module, and torch.compile
traces them and warns of them (docs/design/0022). torch.fx replaces `Module.__call__` in the same way.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils import _python_dispatch

from m5ws.training.compat.facts import Fact

_original = torch.nn.Module.__call__
_backward = torch.Tensor.backward

_FAKE = torch._C._TorchDispatchModeKey.FAKE

_Result = TypeVar("_Result")
Around = Callable[[Callable[..., Any], torch.nn.Module, tuple[Any, ...], dict[str, Any]], Any]
"""Called with the original `Module.__call__`, the module and its arguments, in place of the call."""


def surround(around: Around, before_backward: Callable[[torch.Tensor], None]) -> None:
    """Let `around` make the calls of modules in this thread that are not within another call, or in a backward pass.

    `before_backward` gets each tensor on which the script calls `backward()`. Traced calls are left as they are.
    """
    thread = threading.get_ident()
    inside = False

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        # torch.compile evaluates the first condition while it traces. Inner calls, which are many, need no other one.
        if torch.compiler.is_compiling() or inside or threading.get_ident() != thread or is_traced() or in_backward():
            return _original(module, *args, **kwargs)
        inside = True
        try:
            return around(_original, module, args, kwargs)
        finally:
            inside = False

    @functools.wraps(_backward)
    def backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if not (torch.compiler.is_compiling() or threading.get_ident() != thread or is_traced() or in_backward()):
            before_backward(tensor)
        _backward(tensor, *args, **kwargs)  # type: ignore[no-untyped-call]

    torch.nn.Module.__call__ = call  # type: ignore[method-assign]
    torch.Tensor.backward = backward  # type: ignore[method-assign, assignment]


def restore() -> None:
    """Let modules be called, and `backward()`, as torch calls them."""
    torch.nn.Module.__call__ = _original  # type: ignore[method-assign]
    torch.Tensor.backward = _backward  # type: ignore[method-assign]


def is_traced() -> bool:
    """Return True while operations are traced, transformed or captured, so that reading a value would be part of it.

    By torch.compile, torch.export, torch.jit.trace, torch.func, fake tensors, or a CUDA graph.
    """
    # torch.compile evaluates the first condition while it traces, and the other conditions are then not traced.
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_dispatch_mode(_FAKE) is not None
        or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]
    )


def call_without_modes(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call a function, and hide its operations from dispatch and function modes, which may count or change them."""
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        with torch._C.DisableTorchFunction(), _python_dispatch._disable_current_modes():
            return function(*arguments)
    return function(*arguments)


def in_backward() -> bool:
    """Return True in a backward pass, in which activation checkpointing calls modules again."""
    return torch._C._current_graph_task_id() != -1


def _hides_from_modes() -> bool:
    with torch.device("meta"):
        return not call_without_modes(torch.empty, 0).is_meta


OBSERVED = (
    Fact("torch", "Module.__call__", lambda: _original is torch.nn.Module.__dict__["__call__"]),
    Fact("torch", "torch._C._current_graph_task_id", lambda: not in_backward()),
    Fact("torch", "torch._C._functorch and dispatch modes", lambda: not is_traced()),
    Fact("torch", "torch.utils._python_dispatch._disable_current_modes", _hides_from_modes),
    Fact("torch", "Tensor.backward", lambda: _backward is torch.Tensor.__dict__["backward"]),
)
