"""Small messages between the ranks, on a gloo group of m5ws's own.

The training's own groups are never used: bookkeeping must not reorder, delay or share a stream with the collectives of
the model. With one process, every function is the identity.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from m5ws.errors import UsageError
from m5ws.records import codec
from m5ws.repository.objects import Objects
from m5ws.training.state.plain_state import Plain, RestoreError

T = TypeVar("T")
Group = ProcessGroup | None
"""A gloo group of all ranks; None for a single process."""
_FAN_OUT = 16
_MODULUS, _SIGN = 1 << 64, 1 << 63


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


def reduce(value: T, join: Callable[[T, T], T], group: Group) -> T | None:
    """Return all ranks' values, joined in order of ranks, on rank 0, and None on other ranks; collective.

    The ranks are a tree: each joins the values of at most `_FAN_OUT` - 1 others at each level, and keeps one at a time.
    `join` gets the values of consecutive ranks, and must not fail.
    """
    if group is None:
        return value
    own, world = dist.get_rank(group), dist.get_world_size(group)
    for others, parent in levels(own, world):
        for other in others:
            value = join(value, _receive(other, group))
        if parent is not None:
            dist.send_object_list([value], dst=dist.get_global_rank(group, parent), group=group)
            return None
    return value


def levels(own: int, world: int) -> Iterator[tuple[range, int | None]]:
    """Yield, for each level of a rank in the tree, the ranks that send to it, and the rank to which it sends then."""
    distance = 1
    while distance < world:
        above = distance * _FAN_OUT
        if own % above:
            yield range(0), own - own % above
            return
        yield range(own + distance, min(own + above, world), distance), None
        distance = above


def _receive(other: int, group: ProcessGroup) -> Any:
    box = [None]
    dist.recv_object_list(box, src=dist.get_global_rank(group, other), group=group)
    return box[0]


def greatest(values: Sequence[int], group: Group) -> list[int]:
    """Return the greatest of all ranks' values at each place; collective."""
    if group is None:
        return [*values]
    reduced = torch.tensor(values, dtype=torch.int64)
    dist.all_reduce(reduced, dist.ReduceOp.MAX, group=group)
    return reduced.tolist()


def add_up(values: Sequence[int], group: Group) -> list[int]:
    """Return the sum of all ranks' values at each place, modulo 2^64, on rank 0; collective."""
    if group is None:
        return [value % _MODULUS for value in values]
    # As signed numbers, whose addition has the same bits.
    reduced = torch.tensor([(value + _SIGN) % _MODULUS - _SIGN for value in values], dtype=torch.int64)
    dist.reduce(reduced, dist.get_global_rank(group, 0), dist.ReduceOp.SUM, group=group)
    return [value % _MODULUS for value in reduced.tolist()]


def raise_on_all(problem: Exception | None, what: str, group: Group) -> None:
    """Raise this rank's problem, or on the other ranks an error about the first rank that has one; collective.

    `what` is the failed action in words, for that error.
    """
    rank_, world_ = rank(group), world(group)
    (failed,) = greatest([0 if problem is None else world_ - rank_], group)
    reason = [str(problem)]
    if failed and group is not None:
        dist.broadcast_object_list(reason, src=dist.get_global_rank(group, world_ - failed), group=group)
    if problem is not None:
        raise problem
    if failed:
        raise RestoreError(f"rank {world_ - failed} could not {what}: {reason[0]}")


def equal_on_all(value: Plain, objects: Objects, group: Group) -> bool:
    """Return True if all ranks have the same plain data; collective."""
    return group is None or equal_digests(bytes.fromhex(objects.digest(codec.encode_plain(value))), group)


def equal_digests(digest: bytes, group: Group) -> bool:
    """Return True if all ranks have the same digest; collective."""
    words = [int.from_bytes(digest[at : at + 4]) for at in range(0, len(digest), 4)]
    # The greatest of the negated words is the least of the words.
    reduced = greatest([*words, *(-word for word in words)], group)
    return all(high == -low for high, low in zip(reduced[: len(words)], reduced[len(words) :], strict=True))


def broadcast(value: T | None, group: Group) -> T:
    """Return rank 0's value; collective."""
    box = [value]
    if group is not None:
        dist.broadcast_object_list(box, src=0, group=group)
    return box[0]  # type: ignore[return-value]
