"""Small messages between the ranks, on a gloo group of m5ws's own.

The training's own groups are never used: bookkeeping must not reorder, delay or share a stream with the collectives of
the model. With one process, every function is the identity.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from m5ws.errors import UsageError
from m5ws.records import codec
from m5ws.repository.objects import Objects
from m5ws.training.state.plain_state import Plain

T = TypeVar("T")
Group = ProcessGroup | None
"""A gloo group of all ranks; None for a single process."""


def new_group() -> Group:
    """Return a gloo group of all ranks, or None for a single process; collective.

    Raises UsageError if there are several ranks and torch.distributed is not initialised yet.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.new_group(backend="gloo") if dist.get_world_size() > 1 else None
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError(
            "m5ws.session() was called before torch.distributed was initialised",
            hint="Call torch.distributed.init_process_group() (or deepspeed.initialize) first.",
        )
    return None


def rank(group: Group) -> int:
    """Return this process's rank."""
    return 0 if group is None else dist.get_rank(group)


def world(group: Group) -> int:
    """Return the number of ranks."""
    return 1 if group is None else dist.get_world_size(group)


def gather(value: T, group: Group) -> list[T]:
    """Return every rank's value, in order of ranks; collective."""
    if group is None:
        return [value]
    values: list[T | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values  # type: ignore[return-value]


def greatest(values: Sequence[int], group: ProcessGroup) -> list[int]:
    """Return the greatest of all ranks' values at each place; collective."""
    reduced = torch.tensor(values, dtype=torch.int64)
    dist.all_reduce(reduced, dist.ReduceOp.MAX, group=group)
    return reduced.tolist()


def equal_on_all(value: Plain, objects: Objects, group: Group) -> bool:
    """Return True if all ranks have the same plain data; collective."""
    return group is None or len(set(gather(objects.digest(codec.encode_plain(value)), group))) == 1


def broadcast(value: T | None, group: Group) -> T:
    """Return rank 0's value; collective."""
    box = [value]
    if group is not None:
        dist.broadcast_object_list(box, src=0, group=group)
    return box[0]  # type: ignore[return-value]
