"""Plans of `gc` in the store, as described in docs/format.md, "Deleting".

Names beside a plan's folder give its state, so that a single `names("gc/")` returns the states of all plans.
`<plan>.plan` is published after all parts, `<plan>.executing` before the first delete, `<plan>.done` after the last.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.records.gc import Garbage, GcPlan, Keep, RetiredReference, Retirements
from m5ws.repository import bindings
from m5ws.store.interface import ObjectStore

PREFIX = "gc/"
WIDTH = bindings.DIGEST_BYTES


class GcState(msgspec.Struct, frozen=True, kw_only=True):
    """Names of plans by state: published only, being executed, and done."""

    open: frozenset[str]
    executing: frozenset[str]
    done: frozenset[str]


@dataclass
class RetryPolicy:
    """How a writer waits for a `gc` that is deleting objects it needs."""

    limit_s: float = 3600.0
    pause: Callable[[float], None] = time.sleep
    progress: Progress | None = None


def read_states(store: ObjectStore) -> GcState:
    """Return the state of every plan, in one request."""
    names: dict[str, set[str]] = {"plan": set(), "executing": set(), "done": set()}
    for name in store.names(PREFIX):
        plan, _, standing = name.rpartition(".")
        if plan and standing in names:
            names[standing].add(plan)
    done = frozenset(names["done"])
    executing = frozenset(names["executing"] - done)
    return GcState(open=frozenset(names["plan"] - done - executing), executing=executing, done=done)


def state_key(plan: str, state: Literal["plan", "executing", "done"]) -> str:
    """Return the key of a state of a plan. `plan` publishes its head, and after `done` it deletes nothing more."""
    return f"{PREFIX}{plan}.{state}"


def folder(plan: str, kind: str = "") -> str:
    """Return the prefix of a plan's own objects: `garbage`, `retired`, `keep` and `asked`."""
    return f"{PREFIX}{plan}/{kind}/" if kind else f"{PREFIX}{plan}/"


def part_key(plan: str, kind: str, number: int) -> str:
    """Return the key of one part of a plan."""
    return f"{folder(plan, kind)}{number:08d}"


def head(store: ObjectStore, plan: str) -> GcPlan:
    """Return a plan's head. Raises NotFound after the plan was deleted."""
    return bindings.record(store, state_key(plan, "plan"), GcPlan)


def garbage(store: ObjectStore, plan: str, planned: GcPlan, number: int) -> Garbage:
    """Return one part of a plan's objects. Raises NotFound (as `head`), CorruptObject, Misplaced."""
    where = part_key(plan, "garbage", number)
    part = bindings.record(store, where, Garbage)
    bindings.check_part(where, bindings.part_of(where, part), planned)
    return part


def retired(store: ObjectStore, plan: str, planned: GcPlan) -> Iterator[RetiredReference]:
    """Yield the references that a plan retires."""
    for number in range(planned.references):
        where = part_key(plan, "retired", number)
        yield from bindings.record(store, where, Retirements).checkpoints


def select_named(store: ObjectStore, plan: str, digests: set[bytes]) -> set[bytes]:
    """Return the `digests` that a plan names. Reads only parts that could contain one. Raises NotFound."""
    matches: set[bytes] = set()
    wanted = sorted(digests)
    planned = head(store, plan)
    for number, part in enumerate(planned.parts):
        first, last = bytes.fromhex(part.first), bytes.fromhex(part.last)
        if any(first <= digest <= last for digest in wanted):
            matches |= digests.intersection(split(garbage(store, plan, planned, number).digests))
    return matches


def keeps(store: ObjectStore, plan: str) -> set[bytes]:
    """Return all objects that writers have marked with a keep."""
    kept: set[bytes] = set()
    for stat in store.list(folder(plan, "keep")):
        kept.update(split(bindings.record(store, stat.key, Keep).digests))
    return kept


def split(joined: bytes) -> Iterator[bytes]:
    """Yield the digests in a concatenation of digests."""
    return (joined[start : start + WIDTH] for start in range(0, len(joined), WIDTH))


def packed(digests: Iterable[Digest]) -> set[bytes]:
    """Return digests as 32 bytes each, which a set of millions needs."""
    return {bytes.fromhex(digest) for digest in digests}
