"""Bytes of runs, each with its replays: of everything that they need, and of the part that nothing else needs.

Memory: some hundred bytes for each object of the store.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

import msgspec

from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.records.ledger import NODE, Moved
from m5ws.records.log import LOGS
from m5ws.repository.ledger import ledger, summaries
from m5ws.repository.objects import is_digest
from m5ws.repository.references import runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import closure

_SNAPSHOTS = 8
_OF_SNAPSHOTS, _SEVERAL = "snapshots", "several"
"""Owners besides runs. A snapshot stays when its runs are gone."""


class RunUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one run with its `replays`: of their objects (`logical_bytes`), of objects that no other run and no
    snapshot needs (`unique_bytes`), and of their ledgers, logs and other records.

    `remote_bytes`: of datasets that stay in their remotes. `crossed_bytes`: read and written between two regions, where
    both are known, by the nodes of all attempts.
    `problem`: one of the runs is damaged, and only its records were counted.
    """

    run: str
    replays: int = 0
    name: str | None = None
    created_s: float = 0.0
    logical_bytes: int = 0
    unique_bytes: int = 0
    record_bytes: int = 0
    remote_bytes: int = 0
    crossed_bytes: int = 0
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
    """The sizes of all objects, and the one owner of each that is needed."""

    def __init__(self, repo: Repository, progress: Progress) -> None:
        self.sizes: dict[Digest, int] = {}
        self._owners: dict[Digest, str] = {}
        prefixes = repo.store.names("objects/")
        for position, prefix in enumerate(prefixes):
            progress("listing objects", position, len(prefixes))
            for stat in repo.store.list(f"objects/{prefix}/"):
                if is_digest(name := stat.key.rpartition("/")[2]):
                    self.sizes[name] = stat.size_bytes

    def own(self, owner: str, digests: Iterable[Digest]) -> int:
        """Note that an owner needs objects, and return their bytes. Missing objects have none."""
        existing = [digest for digest in digests if digest in self.sizes]
        for digest in existing:
            self._owners[digest] = owner if self._owners.get(digest, owner) == owner else _SEVERAL
        return sum(self.sizes[digest] for digest in existing)

    def unique(self) -> Counter[str | None]:
        """Return the bytes that each owner alone needs; None stands for nobody."""
        sizes: Counter[str | None] = Counter()
        for digest, size_bytes in self.sizes.items():
            sizes[self._owners.get(digest)] += size_bytes
        return sizes


def measure(repo: Repository, progress: Progress | None = None) -> StoreUsage:
    """Return the bytes of all runs, the most unique bytes first. Reads every record."""
    say = progress or (lambda *_: None)
    objects = _Objects(repo, say)
    names = runs.ids(repo)
    records: Counter[str] = Counter()
    for prefix in ("runs/", LOGS):
        for stat in repo.store.list(prefix):
            records[stat.key.split("/")[1]] += stat.size_bytes
    of_snapshot = lru_cache(_SNAPSHOTS)(lambda snapshot: closure.closure(repo, "snapshot", snapshot).keys())
    for position, snapshot in enumerate(kept := snapshots.ids(repo)):
        say("reading snapshots", position, len(kept))
        # The objects of a damaged snapshot count for its runs alone; fsck names the damage.
        with suppress(*runs.UNREADABLE):
            objects.own(_OF_SNAPSHOTS, of_snapshot(snapshot))
    usages = []
    for position, (run, members) in enumerate(_with_replays(repo, names).items()):
        say("reading runs", position, len(names))
        usages.append(_usage(repo, objects, run, members, records, of_snapshot))
    unique = objects.unique()
    rows = [msgspec.structs.replace(row, unique_bytes=unique[row.run]) for row in usages]
    return StoreUsage(
        runs=tuple(sorted(rows, key=lambda row: (-row.unique_bytes, -row.logical_bytes, row.run))),
        objects=len(objects.sizes),
        size_bytes=sum(objects.sizes.values()),
        other_bytes=unique[None] + unique[_OF_SNAPSHOTS],
    )


def _with_replays(repo: Repository, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the runs by the run that they reproduce in the end; a run that reproduces none is its own."""
    facts, groups = runs.facts(repo), dict[str, list[str]]()
    for name in names:
        original, passed = name, set[str]()
        while original in facts and (earlier := facts[original].reproduces) in facts and original not in passed:
            passed.add(original)
            original = earlier
        groups.setdefault(original, []).append(name)
    return groups


def _usage(
    repo: Repository,
    objects: _Objects,
    original: str,
    members: Sequence[str],
    records: Mapping[str, int],
    of_snapshot: Callable[[Digest], Iterable[Digest]],
) -> RunUsage:
    """Return the bytes of a run with its replays."""
    needs, crossed_bytes, usage = set[Digest](), 0, RunUsage(run=original, replays=len(members) - 1)
    for name in members:
        try:
            run = runs.load(repo, name)
            needs.update(of_snapshot(run.snapshot), closure.closure(repo, "run", name))
            crossed_bytes += _crossed(repo, name)
            if name == original:
                remote = sum(each.size_bytes for each in snapshots.load(repo, run.snapshot).remote)
                usage = msgspec.structs.replace(usage, name=run.name, created_s=run.created_s, remote_bytes=remote)
        except runs.UNREADABLE as error:
            usage = msgspec.structs.replace(usage, problem=str(error))
    sizes = {"logical_bytes": objects.own(original, needs), "record_bytes": sum(records[name] for name in members)}
    return msgspec.structs.replace(usage, crossed_bytes=crossed_bytes, **sizes)


def _crossed(repo: Repository, run: str) -> int:
    """Return the bytes that the nodes of a run read and wrote between two known regions."""
    loaded = (summaries.load(repo, run, attempt) for attempt in ledger.attempts(repo, run))
    moved = (event for origins in loaded for event in origins.get(NODE, ()) if isinstance(event, Moved))
    return sum(each.read_bytes + each.written_bytes for each in moved if each.crosses)
