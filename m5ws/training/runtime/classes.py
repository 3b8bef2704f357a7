"""Decisions of all ranks together about their layouts, which most ranks have in common.

The ranks compare digests. If all are equal, each rank decides by itself. Otherwise rank 0 gets one layout for each
class of ranks, such as a pipeline stage, and decides for all. Invariant: a decision depends on the classes alone.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from m5ws.records import codec
from m5ws.training.runtime import collectives
from m5ws.training.runtime.collectives import Group
from m5ws.training.state.plain_state import StateError

D = TypeVar("D")
T = TypeVar("T")
Class = tuple[tuple[int, ...], D]
"""Ranks with equal layouts, in order, and the layouts."""


def decide(own: D, decision: Callable[[Sequence[Class[D]]], T], group: Group) -> T:
    """Return the decision about the layouts of all ranks; collective. `own` are this rank's, as plain data.

    Raises StateError, on all ranks, if `decision` does.
    """
    rank, world = collectives.rank(group), collectives.world(group)
    digest = hashlib.blake2b(codec.encode_plain(own), digest_size=32).digest()
    if collectives.equal_digests(digest, group):
        return decision([(tuple(range(world)), own)])
    single: dict[bytes, Class[D]] = {digest: ((rank,), own)}
    classes = collectives.reduce(single, join, group)
    outcome: Any = None
    if classes is not None:
        try:
            outcome = decision(sorted(classes.values(), key=lambda each: each[0]))
        except StateError as error:
            outcome = error
    outcome = collectives.broadcast(outcome, group)
    if isinstance(outcome, StateError):
        raise outcome
    return outcome  # type: ignore[no-any-return]


def join(a: dict[bytes, Class[D]], b: dict[bytes, Class[D]]) -> dict[bytes, Class[D]]:
    """Return the classes of more ranks, by the digests of their layouts."""
    joined = dict(a)
    for digest, (ranks, layouts) in b.items():
        before = joined[digest][0] if digest in joined else ()
        joined[digest] = (*before, *ranks), layouts
    return joined
