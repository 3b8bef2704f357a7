"""Internals of torch's tensors: nested values, wrapper classes, leaves of autograd graphs."""

from typing import Any, TypeGuard

import torch
from torch.utils import _python_dispatch, _pytree

from m5ws.training.compat.facts import Fact


def tree_leaves(values: Any) -> list[Any]:
    """Return the leaves of nested lists, tuples, dictionaries and registered classes, in order."""
    return _pytree.tree_leaves(values)


def is_wrapper(tensor: object) -> bool:
    """Return True for a tensor of a class that wraps inner tensors."""
    return bool(_python_dispatch.is_traceable_wrapper_subclass(tensor))


def is_accumulator(node: Any) -> TypeGuard[Any]:
    """Return True for the node of the autograd graph that adds to a leaf's gradient; its `variable` is the leaf."""
    return node is not None and hasattr(node, "variable")


def leaf_of(node: Any) -> torch.Tensor:
    """Return the leaf of an accumulator node."""
    leaf: torch.Tensor = node.variable
    return leaf


def _has_accumulator() -> bool:
    leaf = torch.empty(0, requires_grad=True)
    node = (leaf.view(0).grad_fn.next_functions)[0][0]  # type: ignore[union-attr]
    return is_accumulator(node) and leaf_of(node) is leaf


TRACED = (
    Fact("torch", "torch.utils._pytree.tree_leaves", lambda: tree_leaves((1, {"a": [2]})) == [1, 2]),
    Fact("torch", "torch.utils._python_dispatch.is_traceable_wrapper_subclass", lambda: not is_wrapper(torch.empty(0))),
    Fact("torch", "AccumulateGrad.variable in the autograd graph", _has_accumulator),
)
