"""Bytes of runs, each with its replays: of everything that they need, and of the part that nothing else needs.

Memory: 20 bytes for each object of the store, and the objects of one run and of a few snapshots at a time.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial

import msgspec

from m5ws.progress import Progress
from m5ws.records.run import Run
from m5ws.repository.ledger import ledger
from m5ws.repository.objects import is_digest
from m5ws.repository.reachability.reach import ReachableObjects
from m5ws.repository.references import checkpoints, outputs, runs, snapshots
from m5ws.repository.repository import Repository

_NOBODY, _SEVERAL = -1, -2
_SNAPSHOTS = 8


class RunUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one run with its `replays`: of their objects (`logical_bytes`), of those that no other run and no
    snapshot needs (`unique_bytes`), and of their ledgers and other records.

    `problem`: one of them is damaged, and only its records were counted.
    """

    run: str
    replays: int = 0
    name: str | None = None
    created_s: float = 0.0
    logical_bytes: int = 0
    unique_bytes: int = 0
    record_bytes: int = 0
    problem: str | None = None

    @property
    def shared_bytes(self) -> int:
        """Bytes of objects that another run or a snapshot needs too."""
        return self.logical_bytes - self.unique_bytes


class StoreUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of all runs, and of the store: `other_bytes` are objects that no run needs."""

    runs: tuple[RunUsage, ...]
    objects: int
    size_bytes: int
    other_bytes: int


class _Objects:
    """The sizes of all objects, and the one owner of each. An object is known by the first 8 bytes of its digest."""

    def __init__(self, repo: Repository, progress: Progress) -> None:
        self._names, self._sizes = array("Q"), array("Q")
        prefixes = repo.store.names("objects/")
        for position, prefix in enumerate(prefixes):
            progress("listing objects", position, len(prefixes))
            stats = ((stat.key.rpartition("/")[2], stat.size_bytes) for stat in repo.store.list(f"objects/{prefix}/"))
            for name, size_bytes in sorted((int(name[:16], 16), size) for name, size in stats if is_digest(name)):
                self._names.append(name)
                self._sizes.append(size_bytes)
        self._owners = array("i", [_NOBODY]) * len(self._names)

    def own(self, owner: int, digests: Iterable[bytes]) -> int:
        """Note that an owner needs objects, and return their bytes. Missing objects have none."""
        total = 0
        for digest in digests:
            name = int.from_bytes(digest[:8], "big")
            place = bisect_left(self._names, name)
            if place < len(self._names) and self._names[place] == name:
                known = self._owners[place]
                self._owners[place] = owner if known in (_NOBODY, owner) else _SEVERAL
                total += self._sizes[place]
        return total

    def unique(self, owners: int) -> list[int]:
        """Return the bytes that each owner alone needs, then those that nobody needs."""
        sizes = [0] * (owners + 1)
        for owner, size_bytes in zip(self._owners, self._sizes, strict=True):
            if owner != _SEVERAL:
                sizes[owner] += size_bytes
        return sizes

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes)

    def __len__(self) -> int:
        return len(self._names)


def measure(repo: Repository, progress: Progress | None = None) -> StoreUsage:
    """Return the bytes of all runs, those with the most unique bytes first. Reads every record, as `gc` does."""
    say = progress or (lambda *_: None)
    objects = _Objects(repo, say)
    names = runs.ids(repo)
    records = dict.fromkeys(names, 0)
    for stat in repo.store.list("runs/"):
        run = stat.key.split("/")[1]
        records[run] = records.get(run, 0) + stat.size_bytes
    of_snapshot = lru_cache(_SNAPSHOTS)(partial(_snapshot, repo))
    # All snapshots are one owner: a snapshot stays when its runs are gone.
    for position, snapshot in enumerate(kept := snapshots.ids(repo)):
        say("reading snapshots", position, len(kept))
        # The objects of a damaged one are those of the runs alone; fsck names the damage.
        with suppress(*runs.UNREADABLE):
            objects.own(len(names), of_snapshot(snapshot))
    usages = []
    for position, (run, members) in enumerate(_with_replays(repo, names).items()):
        say("reading runs", position, len(names))
        usages.append(_usage(repo, objects, position, run, members, records, of_snapshot))
    unique = objects.unique(len(names) + 1)
    rows = [msgspec.structs.replace(row, unique_bytes=unique[place]) for place, row in enumerate(usages)]
    return StoreUsage(
        runs=tuple(sorted(rows, key=lambda row: (-row.unique_bytes, -row.logical_bytes, row.run))),
        objects=len(objects),
        size_bytes=objects.size_bytes,
        other_bytes=unique[-1] + unique[len(names)],
    )


def _snapshot(repo: Repository, snapshot: str) -> frozenset[bytes]:
    """Return the objects of a snapshot and of its annotations."""
    reach = ReachableObjects(repo.objects)
    for annotation in snapshots.annotations(repo, snapshot):
        reach.annotation(annotation)
    reach.snapshot(snapshot)
    return frozenset(reach.digests)


def _with_replays(repo: Repository, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the runs by the run that they reproduce in the end; a run that reproduces none is its own."""
    originals, groups = dict[str, str](), dict[str, list[str]]()
    facts = runs.facts(repo)
    for name, fact in sorted(facts.items(), key=lambda item: item[1].created_s):
        originals[name] = originals.get(fact.reproduces or "", name)
    for name in names:
        groups.setdefault(originals.get(name, name), []).append(name)
    return groups


def _usage(
    repo: Repository,
    objects: _Objects,
    owner: int,
    original: str,
    members: Sequence[str],
    records: Mapping[str, int],
    of_snapshot: Callable[[str], frozenset[bytes]],
) -> RunUsage:
    """Return the bytes of a run with its replays."""
    reach, usage = ReachableObjects(repo.objects), RunUsage(run=original, replays=len(members) - 1)
    for name in members:
        try:
            run = _reach_run(repo, reach, name, of_snapshot)
            if name == original:
                usage = msgspec.structs.replace(usage, name=run.name, created_s=run.created_s)
        except runs.UNREADABLE as error:
            usage = msgspec.structs.replace(usage, problem=str(error))
    return msgspec.structs.replace(
        usage, logical_bytes=objects.own(owner, reach.digests), record_bytes=sum(records[name] for name in members)
    )


def _reach_run(
    repo: Repository, reach: ReachableObjects, run_id: str, of_snapshot: Callable[[str], frozenset[bytes]]
) -> Run:
    """Add the objects of a run, and return it."""
    run = runs.load(repo, run_id)
    reach.digests |= of_snapshot(run.snapshot)
    for attempt in ledger.attempts(repo, run_id):
        for started in ledger.node_starts(repo, run_id, attempt):
            reach.add(started.observed)
    if run.parent is not None:
        reach.checkpoint(run.parent.digest)
    for label in checkpoints.names(repo, run_id):
        reach.checkpoint(checkpoints.read(repo, run_id, label)[0])
    for label in outputs.names(repo, run_id):
        reach.outputs(outputs.find(repo, run_id, label)[0])
    return run
