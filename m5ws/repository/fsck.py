"""Reads everything, checks every digest and every reference, and says what damage harms.

A store is clean when each object has the bytes it is named for and everything that a reference names is
there. Objects that nothing names are not damage: a killed writer leaves them, and a repeated call uses them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import msgspec

from m5ws import codec
from m5ws.errors import CorruptObject, M5Error, NotFound
from m5ws.gc_records import Done, GcPlan
from m5ws.ports import Progress
from m5ws.records import Annotation, Checkpoint, Digest, Run, Slice, Snapshot, Verdict
from m5ws.repository import Repository, checkpoints, ledger, plans
from m5ws.repository.flight import Job, fly
from m5ws.repository.naming import named
from m5ws.repository.objects import is_digest, key


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """One damaged or missing thing: its store key, what is wrong, and the snapshots and runs that need it."""

    kind: Literal["corrupt", "truncated", "missing", "dangling", "broken-chain", "unreadable", "foreign"]
    key: str
    detail: str
    harms: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `check` read and found; `unreachable` counts objects that nothing names."""

    objects: int
    size_bytes: int
    snapshots: int
    runs: int
    unreachable: int
    damage: tuple[Damage, ...]

    @property
    def clean(self) -> bool:
        return not self.damage


def check(repo: Repository, progress: Progress | None = None) -> Report:
    """Read the whole store and return what is wrong with it. Raises nothing for damage.

    What gc deletes between two looks seems damaged; so if it was at work, damage counts when it is seen again.
    """
    for _ in range(_LOOKS - 1):
        before = plans.look(repo.store)
        report = _Check(repo, progress).report()
        if report.clean or (not before.executing and plans.look(repo.store) == before):
            return report
    return _Check(repo, progress).report()


_LOOKS = 4
_THREADS = 16
_BUDGET_BYTES = 256 * 2**20
"""What objects that are being read hold together: it bounds the memory."""

_Need = tuple[Digest, int]
"""An object and the least length it must have."""


class _Check:
    def __init__(self, repo: Repository, progress: Progress | None) -> None:
        self._repo = repo
        self._progress: Progress = progress or (lambda *_: None)
        self._sizes: dict[Digest, int] = {}
        self._bad: dict[Digest, str] = {}
        self._damage: list[Damage] = []
        self._needed_by: dict[Digest, set[str]] = {}
        self._least: dict[Digest, int] = {}
        self._slices: dict[Digest, set[Slice]] = {}
        self._reached: dict[Digest, frozenset[_Need]] = {}
        self._unreadable: dict[Digest, str] = {}

    def report(self) -> Report:
        self._list_objects()
        snapshots = self._repo.store.names("snapshots/")
        runs = self._repo.store.names("runs/")
        for snapshot in snapshots:
            self._root(f"snapshot {snapshot}", lambda snapshot=snapshot: self._snapshot(snapshot))  # type: ignore[misc]
        for run in runs:
            self._root(f"run {run}", lambda run=run: self._run(run))  # type: ignore[misc]
        for run in self._repo.store.names(checkpoints.PINS):
            self._root(f"run {run}", lambda run=run: self._pins(run))  # type: ignore[misc]
        self._plans()
        self._read_objects()
        self._judge_objects()
        return Report(
            objects=len(self._sizes),
            size_bytes=sum(self._sizes.values()),
            snapshots=len(snapshots),
            runs=len(runs),
            unreachable=len(self._sizes.keys() - self._needed_by.keys()),
            damage=tuple(sorted(self._damage, key=lambda damage: damage.key)),
        )

    # --- objects -----------------------------------------------------------------------------------

    def _list_objects(self) -> None:
        for found in self._repo.store.list("objects/"):
            digest = found.key.split("/")[-1]
            if is_digest(digest) and found.key == key(digest):
                self._sizes[digest] = found.size_bytes
            else:
                self._add("foreign", found.key, "m5ws did not write this; move it away")

    def _read_objects(self) -> None:
        """Read every object once, whole, and hold it against its name and against the slices that records name."""
        digests = [digest for digest in self._sizes if digest not in self._bad]
        jobs: list[Job[tuple[Digest, str | None]]] = [
            (self._sizes[digest], partial(self._read_object, digest)) for digest in digests
        ]
        for position, (digest, trouble) in enumerate(fly(jobs, _THREADS, _BUDGET_BYTES)):
            self._progress("checking objects", position, len(digests))
            if trouble is not None:
                self._bad[digest] = trouble
        self._progress("checking objects", len(digests), len(digests))

    def _read_object(self, digest: Digest) -> tuple[Digest, str | None]:
        """Return what is wrong with an object's bytes, or None."""
        try:
            data = memoryview(self._repo.objects.get(digest))
        except NotFound:
            del self._sizes[digest]  # Deleted since it was listed: missing, if anything needs it.
            return digest, None
        except (CorruptObject, OSError):
            return digest, "its bytes are not those it is named for"
        for part in sorted(self._slices.get(digest, ()), key=lambda part: part.offset):
            if self._repo.objects.digest(data[part.offset : part.offset + part.size_bytes]) != part.digest:
                return digest, f"bytes {part.offset}+{part.size_bytes} are not those that a record names"
        return digest, None

    def _judge_objects(self) -> None:
        """Name each bad or missing object once, with everything that needs it."""
        for digest in sorted(self._bad.keys() | self._needed_by.keys()):
            harms = tuple(sorted(self._needed_by.get(digest, ())))
            size, least = self._sizes.get(digest), self._least.get(digest, 0)
            if size is None:
                self._add("missing", key(digest), "the object is not there", harms)
            elif size < least:
                self._add("truncated", key(digest), f"{size} bytes are left of at least {least}", harms)
            elif digest in self._bad:
                self._add("corrupt", key(digest), self._bad[digest], harms)
        for digest in self._unreadable.keys() & self._sizes.keys() - self._bad.keys():
            self._add("unreadable", key(digest), self._unreadable[digest])

    def _add(self, kind: str, where: str, detail: str, harms: tuple[str, ...] = ()) -> None:
        self._damage.append(Damage(kind=kind, key=where, detail=detail, harms=harms))  # type: ignore[arg-type]

    # --- references --------------------------------------------------------------------------------

    def _root(self, root: str, needs: Callable[[], Iterator[_Need]]) -> None:
        for digest, least in needs():
            self._needed_by.setdefault(digest, set()).add(root)
            self._least[digest] = max(least, self._least.get(digest, 0))

    def _snapshot(self, snapshot_id: str) -> Iterator[_Need]:
        if not is_digest(snapshot_id):
            self._add("foreign", f"snapshots/{snapshot_id}", "not a snapshot id; move it away")
            return
        for name in self._repo.store.names(f"snapshots/{snapshot_id}/"):
            annotation = self._decode(f"snapshots/{snapshot_id}/{name}", Annotation, f"snapshot {snapshot_id}")
            if annotation is not None and annotation.observed is not None:
                yield annotation.observed, 0
        yield from self._reach(snapshot_id, Snapshot)

    def _run(self, run_id: str) -> Iterator[_Need]:
        root = f"run {run_id}"
        run = self._decode(f"runs/{run_id}/run", Run, root)
        if run is not None:
            if not self._repo.store.names(f"snapshots/{run.snapshot}/"):
                self._add("dangling", f"runs/{run_id}/run", f"snapshot {run.snapshot} is not there", (root,))
            yield from self._reach(run.snapshot, Snapshot)
        if "verdict" in self._repo.store.names(f"runs/{run_id}/"):
            self._decode(f"runs/{run_id}/verdict", Verdict, root)
        self._foreign(run_id)
        yield from self._ledgers(run_id, root)
        for name in checkpoints.names(self._repo, run_id):
            yield from self._checkpoint(f"runs/{run_id}/checkpoints/{name}", root)

    def _pins(self, run_id: str) -> Iterator[_Need]:
        for name in self._repo.store.names(f"{checkpoints.PINS}{run_id}/"):
            where = f"{checkpoints.PINS}{run_id}/{name}"
            if checkpoints.is_name(name):
                yield from self._checkpoint(where, f"run {run_id}")
            else:
                self._add("foreign", where, "m5ws did not write this; move it away")

    def _plans(self) -> None:
        """Read what says how gc's plans stand; it names nothing that must be there."""
        for name in self._repo.store.names(plans.PREFIX):
            if name.endswith(".plan"):
                self._decode(f"{plans.PREFIX}{name}", GcPlan, "gc")
            elif name.endswith(".done"):
                self._decode(f"{plans.PREFIX}{name}", Done, "gc")

    def _checkpoint(self, where: str, root: str) -> Iterator[_Need]:
        try:
            digest = checkpoints.named(self._repo, where)
        except NotFound:
            return  # Retired by gc since it was listed.
        except CorruptObject:
            self._add("corrupt", where, "it does not hold a digest", (root,))
            return
        if digest not in self._sizes:
            self._add("dangling", where, f"it names object {digest}, which is not there", (root,))
        else:
            yield from self._reach(digest, Checkpoint)

    def _ledgers(self, run_id: str, root: str) -> Iterator[_Need]:
        for attempt in ledger.attempts(self._repo, run_id):
            for rank in ledger.ranks(self._repo, run_id, attempt):
                try:
                    for event in ledger.events(self._repo, run_id, attempt, rank):
                        observed = getattr(event, "observed", None)
                        if observed is not None:
                            yield observed, 0
                except M5Error as error:
                    where = f"runs/{run_id}/ledger/{attempt:04d}/{rank}"
                    self._add("broken-chain", where, str(error), (root,))
                    break
            else:
                self._chain_ends(run_id, attempt, root)

    def _chain_ends(self, run_id: str, attempt: int, root: str) -> None:
        try:
            ledger.check_ends(self._repo, run_id, attempt)
        except M5Error as error:
            self._add("broken-chain", f"runs/{run_id}/ledger/{attempt:04d}", str(error), (root,))

    def _foreign(self, run_id: str) -> None:
        """Name what is among a run's attempts and checkpoints and is neither; readers pass it over."""
        for folder, known in (("ledger", ledger.is_number), ("checkpoints", checkpoints.is_name)):
            for name in self._repo.store.names(f"runs/{run_id}/{folder}/"):
                if not known(name):
                    self._add("foreign", f"runs/{run_id}/{folder}/{name}", "m5ws did not write this; move it away")

    def _decode(self, where: str, kind: type[codec.R], root: str) -> codec.R | None:
        try:
            return codec.decode(self._repo.store.get(where), kind, where)
        except M5Error as error:
            self._add("unreadable", where, str(error), (root,))
            return None

    # --- what a record needs -----------------------------------------------------------------------

    def _reach(self, digest: Digest, kind: type[codec.R]) -> frozenset[_Need]:
        """Return an object and all that it names; looked at once, however many references lead to it."""
        if digest not in self._reached:
            found: set[_Need] = {(digest, 0)}
            if digest in self._sizes and digest not in self._bad:
                try:
                    record = codec.decode(self._repo.objects.get(digest), kind, f"object {digest}")
                    for one in named(self._repo.objects, digest, record):
                        found.update([self._need(one)] if isinstance(one, Slice) else self._reach(*one))
                except M5Error as error:
                    # Whether its bytes are its own is found when all objects are read.
                    self._unreadable[digest] = str(error)
            self._reached[digest] = frozenset(found)
        return self._reached[digest]

    def _need(self, part: Slice) -> _Need:
        if part.digest != part.object:
            self._slices.setdefault(part.object, set()).add(part)
        return part.object, part.offset + part.size_bytes
