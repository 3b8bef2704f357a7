"""Internals of torch's tensors: nested values, wrapper classes, leaves of autograd graphs."""

from typing import Any

import torch
from torch.utils import _python_dispatch, _pytree

from m5ws.training.compat.facts import Fact


def tree_leaves(values: Any) -> list[Any]:
    """Return the leaves of nested lists, tuples, dictionaries and registered classes, in order."""
    return _pytree.tree_leaves(values)


def is_wrapper(tensor: object) -> bool:
    """Return True for a tensor of a class that wraps inner tensors."""
    return bool(_python_dispatch.is_traceable_wrapper_subclass(tensor))


def leaf_of(node: Any) -> torch.Tensor | None:
    """Return the leaf to whose gradient a node of the autograd graph adds; None for any other node."""
    return getattr(node, "variable", None)


def _has_accumulator() -> bool:
    leaf = torch.empty(0, requires_grad=True)
    node = (leaf.view(0).grad_fn.next_functions)[0][0]  # type: ignore[union-attr]
    return leaf_of(node) is leaf


TRACED = (
    Fact("torch", "torch.utils._pytree.tree_leaves", lambda: tree_leaves((1, {"a": [2]})) == [1, 2]),
    Fact("torch", "torch.utils._python_dispatch.is_traceable_wrapper_subclass", lambda: not is_wrapper(torch.empty(0))),
    Fact("torch", "AccumulateGrad.variable in the autograd graph", _has_accumulator),
)
