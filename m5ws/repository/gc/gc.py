"""Garbage collection in two steps: `plan` publishes the unneeded objects, and `execute` deletes them after a grace
period.

`plan` deletes nothing. docs/format.md, "Deleting", explains why writers may run at any time. Memory: 32 bytes for each
object that is needed. A plan is published in parts.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from m5ws.errors import NotFound
from m5ws.progress import Progress
from m5ws.records.base import KeyedRecord
from m5ws.records.gc import FreedAmount, Garbage, GcPlan, PlanPart, RetentionRules, RetiredReference, Retirements
from m5ws.repository import bindings
from m5ws.repository import gc_plans as plans
from m5ws.repository.gc import roots
from m5ws.repository.gc.roots import Workers, threads
from m5ws.repository.objects import is_digest, key
from m5ws.repository.repository import Repository

PART_OBJECTS = 2**16
_REFERENCES = 2**13

Emit = Callable[[str, int, KeyedRecord], None]
"""Called with (kind, number, record) for each part of a plan."""


class DeletionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan and its name. The name is None for a dry run or an empty plan, which is not published."""

    id: str | None
    plan: GcPlan


def plan(
    repo: Repository,
    rules: RetentionRules,
    older_than_s: float,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    part_objects: int = PART_OBJECTS,
    workers: Workers = threads,
) -> DeletionPlan:
    """Return the objects that can be deleted, and publish the plan unless it is empty or a `dry_run`.

    Objects younger than `older_than_s` seconds, by the store's clock, are left out. Raises as `roots.read`: in a
    damaged store nothing is planned.
    """
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(4).hex()}"
    now_s = time.time() if dry_run else store_now(repo, name)

    def emit(kind: str, number: int, part: KeyedRecord) -> None:
        if not dry_run:
            bindings.create(repo.store, plans.part_key(name, kind, number), part)

    scan = _Scan(repo, now_s - older_than_s, part_objects, emit, progress or (lambda *_: None), workers)
    head = scan.head(rules, older_than_s)
    if dry_run or not (head.objects or head.checkpoints or head.copies):
        return DeletionPlan(id=None, plan=head)
    # Published from here on: all parts are durable.
    return DeletionPlan(id=name, plan=bindings.create(repo.store, plans.state_key(name, "plan"), head))


def store_now(repo: Repository, name: str) -> float:
    """Return the time of the store's clock. Ages are differences of its times, independent of this machine's clock."""
    probe = f"{plans.folder(name, 'asked')}{os.urandom(8).hex()}"
    repo.store.create(probe, b"")
    stat = repo.store.stat(probe)
    if stat is None:
        raise NotFound(f"{probe} does not exist right after its creation")
    return stat.modified_s


@dataclass
class _Scan:
    """One scan of a store: the needed objects, then all other objects, prefix by prefix."""

    _repo: Repository
    _cutoff_s: float
    _part_objects: int
    _emit: Emit
    _say: Progress
    _workers: Workers
    _parts: list[PlanPart] = field(default_factory=list)
    _objects: int = 0
    _bytes: int = 0
    _young: int = 0

    def head(self, rules: RetentionRules, older_than_s: float) -> GcPlan:
        """Emit the parts, and return the head that names them."""
        needed = roots.read(
            self._repo, rules, lambda _, stat: stat.modified_s <= self._cutoff_s, self._say, self._workers
        )
        references = [needed.retired[at : at + _REFERENCES] for at in range(0, len(needed.retired), _REFERENCES)]
        for number, some in enumerate(references):
            self._emit("retired", number, Retirements(checkpoints=some))
        kept = len(needed.reach.digests) - needed.postponed
        self._collect(needed.reach.digests, plans.packed(reference.digest for reference in needed.retired))
        return GcPlan(
            older_than_s=older_than_s,
            rules=rules,
            checkpoints=len(needed.retired) - _copies(needed.retired),
            copies=_copies(needed.retired),
            references=len(references),
            objects=self._objects,
            size_bytes=self._bytes,
            parts=tuple(self._parts),
            freed=tuple(_freed(needed.retired)),
            kept_objects=kept,
            young_objects=needed.postponed + self._young,
        )

    def _collect(self, needed: set[bytes], records: set[bytes]) -> None:
        """Emit all objects that are neither needed nor young.

        The record of a retired reference is included at any age.
        """
        digests, sizes = bytearray(), bytearray()
        prefixes = self._repo.store.names("objects/")
        with self._workers() as pool:
            for position, listed in enumerate(pool.map(lambda prefix: self._list(prefix, needed, records), prefixes)):
                self._say("listing objects", position, len(prefixes))
                young, garbage = listed
                self._young += young
                for digest, size_bytes in garbage:
                    self._objects += 1
                    self._bytes += size_bytes
                    digests += digest
                    sizes += size_bytes.to_bytes(8, "little")
                    if len(digests) >= self._part_objects * plans.WIDTH:
                        self._end_part(digests, sizes)
        if digests:
            self._end_part(digests, sizes)

    def _list(self, prefix: str, needed: set[bytes], records: set[bytes]) -> tuple[int, list[tuple[bytes, int]]]:
        young, garbage = 0, []
        for stat in self._repo.store.list(f"objects/{prefix}/"):
            name = stat.key.rpartition("/")[2]
            if not is_digest(name) or stat.key != key(name) or (digest := bytes.fromhex(name)) in needed:
                continue
            if stat.modified_s <= self._cutoff_s or digest in records:
                garbage.append((digest, stat.size_bytes))
            else:
                young += 1
        return young, garbage

    def _end_part(self, digests: bytearray, sizes: bytearray) -> None:
        garbage, number = Garbage(digests=bytes(digests), sizes=bytes(sizes)), len(self._parts)
        self._emit("garbage", number, garbage)
        if (part := bindings.part_of(f"part {number}", garbage)) is not None:
            self._parts.append(part)
        digests.clear()
        sizes.clear()


def _freed(retired: Sequence[RetiredReference]) -> Iterator[FreedAmount]:
    """Yield the numbers of retired references by run."""
    for run in sorted({reference.run for reference in retired}):
        own = [reference for reference in retired if reference.run == run]
        yield FreedAmount(run=run, checkpoints=len(own) - _copies(own), copies=_copies(own))


def _copies(retired: Sequence[RetiredReference]) -> int:
    """Return the number of retired copies of output files."""
    return sum(reference.outputs is not None for reference in retired)
