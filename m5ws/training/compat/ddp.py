"""Internals of DistributedDataParallel: the reduction of gradients, and the rebuilding of buckets."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from m5ws.training.compat.facts import Fact


def has_comm_hook(ddp: Any) -> bool:
    """Return True if gradients pass through a communication hook, in Python or in C++."""
    return bool(ddp._comm_hooks or ddp._get_ddp_logging_data().get("comm_hook"))


def reduces_otherwise(ddp: Any) -> bool:
    """Return True if some gradients are not reduced by the C++ reducer, or in another type than their own."""
    return bool(ddp.mixed_precision is not None or ddp._use_python_reducer or ddp._delay_all_reduce_params)


def rebuild_buckets(ddp: Any) -> None:
    """Rebuild the buckets with all parameters, in reverse order of registration; collective.

    DDP's own `__setstate__` does the same in another order.
    """
    parameters, sparse = ddp._build_params_for_reducer()
    parameters, sparse = parameters[::-1], sparse[::-1]
    ddp._ddp_init_helper(parameters, sparse, ddp._build_debug_param_to_name_mapping(parameters), ddp.static_graph)
    if ddp.static_graph:
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()
    ddp.reducer._push_all_rebuilt_params()
    ddp.reducer._rebuild_buckets()


def facts(ddp: DistributedDataParallel) -> Iterator[Fact]:
    """Yield the facts about one wrapped model."""
    owners: Any = ("DistributedDataParallel", ddp, _OF_DDP), ("Reducer", ddp.reducer, _OF_REDUCER)
    for kind, owner, names in owners:
        yield from (Fact("torch", f"{kind}.{name}", partial(hasattr, owner, name)) for name in names)


_OF_DDP = (
    "_build_debug_param_to_name_mapping",
    "_build_params_for_reducer",
    "_comm_hooks",
    "_ddp_init_helper",
    "_delay_all_reduce_params",
    "_get_ddp_logging_data",
    "_use_python_reducer",
)
_OF_REDUCER = ("_push_all_rebuilt_params", "_rebuild_buckets", "_set_static_graph")
