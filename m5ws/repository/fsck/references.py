"""All references, ledgers and plans of a store, read and checked in parallel; the records that they name are walked.

References are read before objects are listed, so that objects of a concurrent writer exist when they are checked.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from m5ws.errors import CorruptObject, Misplaced, NotFound, UnknownSchema, UsageError
from m5ws.progress import Progress
from m5ws.records import codec
from m5ws.records.base import Digest, Record
from m5ws.records.canary import Canary
from m5ws.records.checkpoint import Checkpoint
from m5ws.records.gc import Garbage, GcExecution, GcPlan, GcResult, Keep, PlanPart, Retirements
from m5ws.records.incident import INCIDENTS, Incident
from m5ws.records.job import Cancel, Job
from m5ws.records.known import Known
from m5ws.records.log import LOGS, LogPart
from m5ws.records.note import Note
from m5ws.records.outputs import OutputFiles
from m5ws.records.removal import Removal
from m5ws.records.run import Run
from m5ws.records.sample_counts import SAMPLES, SampleCounts
from m5ws.records.snapshot import Annotation, Snapshot
from m5ws.records.store import Format
from m5ws.records.summary import AttemptSummary
from m5ws.records.verdict import JointVerdict, Verdict
from m5ws.repository import bindings, removals
from m5ws.repository import gc_plans as plans
from m5ws.repository.concurrency import for_each
from m5ws.repository.fsck import derived
from m5ws.repository.fsck.damage import Damage, Kind
from m5ws.repository.fsck.records import Records, unread
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.chains import Chain, find_faults, first_missing
from m5ws.repository.objects import is_digest
from m5ws.repository.references import (
    canaries,
    checkpoints,
    index_names,
    jobs,
    known,
    notes,
    outputs,
    run_index,
    runs,
    snapshots,
)
from m5ws.repository.references.parameters import ParameterReader
from m5ws.repository.repository import Repository
from m5ws.store.interface import FORMAT

if TYPE_CHECKING:
    from m5ws.records.ledger import CheckpointPublished, OutputsStored
    from m5ws.repository.references.run_index import AttemptEnd

T = TypeVar("T")

_READS = 2
"""Damaged data is read again: a bit flip in transit is no damage of the store."""
FOREIGN = "not written by m5ws; move it out of the store"
_PLAN_FILES: dict[str, type[Record]] = {"plan": GcPlan, "done": GcResult, "executing": GcExecution}
_PLAN_PARTS: dict[str, type[Record]] = {"garbage": Garbage, "retired": Retirements, "keep": Keep}


class References:
    """Results of `read`: damage, snapshots, runs, and the checkpoint of each reference.

    `checkpoints` has for each reference its key, the snapshot or run that needs it, the digest, and the key that the
    record belongs under.
    """

    def __init__(self, repo: Repository, records: Records) -> None:
        self._repo = repo
        self._records = records
        self._attempts: list[tuple[str, int]] = []
        self._events: dict[tuple[str, str], list[CheckpointPublished | OutputsStored]] = {}
        self._outputs: set[str] = set()
        self._heads: dict[str, GcPlan] = {}
        self._facts: dict[str, tuple[Run | None, Verdict | None]] = {}
        self._summaries: dict[tuple[str, int], dict[str, AttemptSummary]] = {}
        self._ends: dict[tuple[str, int], tuple[AttemptEnd, ...]] = {}
        self._indexed: list[str] = []
        self._annotated: set[str] = set()
        self._links: set[str] = set()
        self._parameters = ParameterReader(repo)
        self._unknown: set[tuple[str, str]] = set()
        self._removed: frozenset[str] = frozenset()
        self._garbage: list[tuple[str, str, PlanPart]] = []
        self.damage: list[Damage] = []
        self.checkpoints: list[tuple[str, str, Digest, str]] = []
        self.snapshots: tuple[str, ...] = ()
        self.runs: tuple[str, ...] = ()

    def read(self, progress: Progress) -> None:
        """Read everything, once."""
        names = self._repo.store.names
        # Before their originals, which were published first, so keys of runs that begin meanwhile are not compared.
        self._indexed = [stat.key for stat in self._repo.store.list(index_names.PREFIX)]
        self.snapshots, self.runs = names("snapshots/"), names("runs/")
        self._links = {stat.key for stat in self._repo.store.list(runs.LINKS)}
        tasks: list[Callable[[], object]] = [partial(self._decode, FORMAT, Format)]
        tasks += [partial(self._snapshot, snapshot) for snapshot in self.snapshots]
        tasks += [partial(self._run, run) for run in self.runs]
        small = (
            (notes.PREFIX, Note),
            (jobs.PREFIX, Job),
            (jobs.CANCELS, Cancel),
            (LOGS, LogPart),
            (INCIDENTS, Incident),
        )
        of_none = ((known.PREFIX, Known), (canaries.PREFIX, Canary), (SAMPLES, SampleCounts))
        for prefix, kind in (*small, *of_none):
            tasks += [partial(self._small, prefix, name, kind) for name in names(prefix)]
        self._removed = removals.removed_runs(self._repo)
        # A copy publishes the removal before the run. An interrupted copy leaves a removal without a run.
        tasks += [partial(self._decode, removals.key(run), Removal, f"run {run}") for run in self._removed]
        tasks += [partial(self._pins, run) for run in names(checkpoints.PINS)]
        tasks += [partial(self._plan, name) for name in names(plans.PREFIX)]
        _do(tasks, "reading references", progress)
        _do([partial(self._attempt, *attempt) for attempt in self._attempts], "reading ledgers", progress)
        self._index()
        self._bindings()

    def _bindings(self) -> None:
        """Check records against each other: checkpoints against events, parts against plans."""
        for where, root, digest, belongs in self.checkpoints:
            if (record := self._records.checkpoints.get(digest)) is not None:
                self._hold(where, partial(bindings.check, belongs, record, where), root)
                # A checkpoint, a pin and output files have the run and the name in their keys.
                _, run, *_, label = belongs.split("/")
                for event in self._events.get((run, label), ()):
                    self._hold(where, partial(bindings.check_event, belongs, digest, record, event), root)
        for where, plan, part in self._garbage:
            if (head := self._heads.get(plan)) is not None:
                self._hold(where, partial(bindings.check_part, where, part, head))
        for belongs in self._outputs - {where for where, *_ in self.checkpoints}:
            if belongs.split("/")[1] not in self._removed and self._repo.store.stat(belongs) is None:
                detail = "the ledger names it, but it does not exist"
                self._add("missing", belongs, detail, f"run {belongs.split('/')[1]}")

    def _hold(self, where: str, check: Callable[[], object], *roots: str) -> None:
        """Report a record that contradicts another record, once per key."""
        try:
            check()
        except (Misplaced, CorruptObject) as error:
            if all(damage.key != where for damage in self.damage):
                self._add("misplaced", where, str(error), *roots)

    def _add(self, kind: Kind, where: str, detail: str, *roots: str) -> None:
        self.damage.append(Damage(kind=kind, key=where, detail=detail, harms=roots))

    # --- snapshots and runs ------------------------------------------------------------------------

    def _snapshot(self, snapshot_id: str) -> None:
        if not is_digest(snapshot_id):
            self._add("foreign", f"snapshots/{snapshot_id}", "not a snapshot id; move it out of the store")
            return
        root, snapshot = f"snapshot {snapshot_id}", None
        try:
            snapshot = self._repo.objects.get_record(snapshot_id, Snapshot)
        except (NotFound, CorruptObject, UnknownSchema):
            self._unknown.add((snapshot_id, "annotated"))
        for name in self._repo.store.names(f"snapshots/{snapshot_id}/"):
            annotation = self._decode(f"snapshots/{snapshot_id}/{name}", Annotation, root)
            if annotation is not None and annotation.observed is not None:
                self._records.need(root, annotation.observed)
            if annotation is None:
                self._unknown.add((snapshot_id, "annotated"))
            elif snapshot is not None:
                self._annotated |= snapshots.index_keys(snapshot_id, snapshot, annotation)
        self._records.walk(root, snapshot_id, Snapshot)

    def _run(self, run_id: str) -> None:
        root = f"run {run_id}"
        run = self._decode(f"runs/{run_id}/run", Run, root)
        if run is not None:
            if not self._repo.store.names(f"snapshots/{run.snapshot}/"):
                self._add("dangling", f"runs/{run_id}/run", f"snapshot {run.snapshot} does not exist", root)
            self._records.walk(root, run.snapshot, Snapshot)
            if run.parent is not None:
                parent = checkpoints.key(run.parent.run, run.parent.checkpoint)
                self.checkpoints.append((f"runs/{run_id}/run", root, run.parent.digest, parent))
                self._records.walk(root, run.parent.digest, Checkpoint)
        verdict, where = None, f"runs/{run_id}/verdict"
        if "verdict" in self._repo.store.names(f"runs/{run_id}/"):
            verdict = self._decode(where, Verdict, root)
            self._unknown |= {(run_id, "verdict")} if verdict is None else set()
            if verdict is not None and run is not None:
                self._hold(where, partial(bindings.check_verdict, verdict, run), root)
        for joint in self._repo.store.names(runs.joints_of(run_id)):
            self._decode(f"{runs.joints_of(run_id)}{joint}", JointVerdict, root)
        self._facts[run_id] = (run, verdict)
        self._unknown |= {(run_id, kind) for kind in run_index.KINDS} if run is None else set()
        self._linked(run, root)
        for name in self._repo.store.names(f"runs/{run_id}/summaries/"):
            where = f"runs/{run_id}/summaries/{name}"
            if (summary := self._decode(where, AttemptSummary, root)) is not None:
                self._summaries.setdefault((run_id, summary.attempt), {})[where] = summary
        self._foreign(run_id)
        begun = ledger.attempts(self._repo, run_id)
        self._attempts += [(run_id, attempt) for attempt in begun]
        if (absent := first_missing(begun)) is not None:
            self._add("missing", f"runs/{run_id}/ledger/{absent:04d}", "later attempts exist", root)
        for name in checkpoints.names(self._repo, run_id):
            self._checkpoint(f"runs/{run_id}/checkpoints/{name}", root)
        for name in outputs.names(self._repo, run_id):
            self._checkpoint(outputs.key(run_id, name), root, OutputFiles)

    def _foreign(self, run_id: str) -> None:
        """Report keys among a run's attempts, checkpoints and outputs that readers skip."""
        for folder, is_known in (
            ("ledger", bindings.is_number),
            ("checkpoints", checkpoints.is_name),
            ("outputs", outputs.is_name),
        ):
            for name in self._repo.store.names(f"runs/{run_id}/{folder}/"):
                if not is_known(name):
                    self._add("foreign", f"runs/{run_id}/{folder}/{name}", FOREIGN)

    def _small(self, prefix: str, name: str, kind: type[Record]) -> None:
        """Check the records of one kind about a run, a kind of machine, or a dataset."""
        is_of_run = kind not in (Known, Canary, SampleCounts)
        # A job may be about a snapshot.
        if is_of_run and name not in self.runs and not (kind is Job and name in self.snapshots):
            self._add("dangling", f"{prefix}{name}", f"run {name} does not exist")
        for stat in self._repo.store.list(f"{prefix}{name}/"):
            self._decode(stat.key, kind, *([f"run {name}"] if is_of_run else ()))

    def _pins(self, run_id: str) -> None:
        for name in self._repo.store.names(f"{checkpoints.PINS}{run_id}/"):
            where = f"{checkpoints.PINS}{run_id}/{name}"
            if checkpoints.is_name(name):
                self._checkpoint(where, f"run {run_id}")
            else:
                self._add("foreign", where, FOREIGN)

    def _checkpoint(self, where: str, root: str, kind: type[Record] = Checkpoint) -> None:
        digest = self._read(lambda: bindings.line(self._repo.store, where))
        if isinstance(digest, NotFound):
            return  # Retired by gc since the listing.
        if isinstance(digest, Exception):
            self._add("corrupt", where, _describe(digest), root)
            return
        self.checkpoints.append((where, root, digest, where))
        self._records.walk(root, digest, kind)

    # --- ledgers -----------------------------------------------------------------------------------

    def _attempt(self, run_id: str, attempt: int) -> None:
        """Check the chains of an attempt, and the end of each rank against its last event and its checkpoints."""
        root = f"run {run_id}"
        made = self._records.made.get((run_id, attempt), {})
        wanted = {head: digest for digest, record in made.items() for head in record.ledger.values()}
        nodes = sorted({0, *ledger.nodes(self._repo, run_id, attempt)})
        chains = [self._chain(Chain(run_id, attempt, node), root, wanted) for node in nodes]
        whole = [chain for chain in chains if chain is not None]
        if len(whole) < len(chains):
            self._unknown.add((run_id, "ended"))
            return
        if not whole[0].order.is_begun:
            self._add("missing", whole[0].prefix, "the event that begins the attempt", root)
        self._derived(whole, root)
        for fault in find_faults(whole, wanted):
            self._add("broken-chain", whole[0].prefix, fault, root)

    def _derived(self, chains: Sequence[Chain], root: str) -> None:
        """Compare the summary of an attempt with its ledger, and keep the ends that the index may have of it."""
        chain, run_id, attempt = chains[0], chains[0].run, chains[0].attempt
        self._ends[(run_id, attempt)] = derived.ends(attempt, chain)
        for where, summary in self._summaries.get((run_id, attempt), {}).items():
            if chain.order.ended is None or summary.batches > chain.batches:
                # It is written after its original, so it is the ledger that was cut.
                detail = f"its summary {where} has {summary.batches} batches and the end of the attempt"
                self._add("missing", f"{chain.prefix}/{chain.batches:08d}", detail, root)
            elif not derived.matches(summary, chains):
                self._add("corrupt", where, "it does not match the ledger; delete it", root)

    def _linked(self, run: Run | None, root: str) -> None:
        """Report missing links from the origins of a run."""
        for link in runs.link_keys(run) if run is not None else ():
            if link not in self._links:
                self._add("missing", link, "the link to the run", root)

    def _index(self) -> None:
        """Compare the keys of the index with their originals."""
        expected = self._annotated.union(*map(self._expected, self._facts))
        for where in self._indexed:
            kind, _, rest = where.removeprefix(index_names.PREFIX).partition("/")
            entry, _, name = rest.partition("/")
            identifier, fact = entry.partition("-")[2], name.partition(".")[0]
            if where in expected or (identifier, fact) in self._unknown:
                continue
            root = f"{kind.removesuffix('s')} {identifier}"
            if not index_names.is_name(name):
                self._add("foreign", where, FOREIGN)
            elif fact == "ended" and not any(run == identifier and ends for (run, _), ends in self._ends.items()):
                self._add("missing", where, "the ledger lacks this end of an attempt", root)
            else:
                self._add("corrupt", where, "it does not match its original; delete it", root)

    def _expected(self, run_id: str) -> set[str]:
        """Return the keys of a run that its records allow in the index."""
        run, verdict = self._facts[run_id]
        if run is None:
            return set()
        try:
            values = self._parameters.of_run(run)
        except (NotFound, CorruptObject, UnknownSchema):
            # The damage of the snapshot is reported.
            values = None
            self._unknown.add((run_id, "parameters"))
        ends = [end for (name, _), each in self._ends.items() if name == run_id for end in each]
        attempts = [attempt for name, attempt in self._attempts if name == run_id]
        return run_index.expected(run, attempts, ends, verdict.outcome if verdict is not None else None, values)

    def _chain(self, chain: Chain, root: str, heads: Container[Digest] = ()) -> Chain | None:
        """Follow a chain and return it. Report a broken chain, and return None."""
        result: Chain | None = chain
        try:
            chain.follow(self._repo, heads)
        except PermissionError:
            raise
        except (CorruptObject, UnknownSchema, NotFound, OSError) as error:
            self._add("broken-chain", f"{chain.prefix}/{chain.batches:08d}", _describe(error), root)
            result = None
        for observed in chain.observed:
            self._records.need(root, observed)
        for event in chain.published:
            self._events.setdefault((chain.run, event.name), []).append(event)
        for stored in chain.outputs:
            self._outputs.add(outputs.key(chain.run, stored.name))
            self._events.setdefault((chain.run, stored.name), []).append(stored)
        return result

    # --- plans -------------------------------------------------------------------------------------

    def _plan(self, name: str) -> None:
        """Read the records of gc. A plan requires no other record, and gc deletes old plans."""
        plan, _, standing = name.rpartition(".")
        if plan and standing in _PLAN_FILES:
            record = self._decode(f"{plans.PREFIX}{name}", _PLAN_FILES[standing], lasting=False)
            if isinstance(record, GcPlan):
                self._heads[plan] = record
            return
        for folder, kind in _PLAN_PARTS.items():
            for part in self._repo.store.names(plans.folder(name, folder)):
                where = f"{plans.folder(name, folder)}{part}"
                record = self._decode(where, kind, lasting=False)
                if isinstance(record, Garbage):
                    self._hold(where, partial(self._part, where, name, record))

    def _part(self, where: str, plan: str, garbage: Garbage) -> None:
        """Add a part to compare with its plan's head. Raises CorruptObject."""
        if (part := bindings.part_of(where, garbage)) is not None:
            self._garbage.append((where, plan, part))

    # --- one reference -----------------------------------------------------------------------------

    def _decode(self, where: str, kind: type[codec.R], *roots: str, lasting: bool = True) -> codec.R | None:
        """Return a reference's record, or report its damage and return None."""
        record = self._read(lambda: bindings.record(self._repo.store, where, kind))
        if not isinstance(record, Exception):
            return record
        if not isinstance(record, NotFound):
            trouble: Kind = "foreign" if isinstance(record, UsageError) else "unreadable"
            trouble = "misplaced" if isinstance(record, Misplaced) else trouble
            self._add(trouble, where, _describe(record), *roots)
        elif lasting:
            self._add("missing", where, "it does not exist", *roots)
        return None

    def _read(self, read: Callable[[], T]) -> T | Exception:
        """Return the result of `read`, or the error of damaged data. Raises errors of the store itself."""
        damage: Exception
        for _ in range(_READS):
            try:
                return read()
            except (NotFound, UsageError) as error:
                return error
            except PermissionError:
                raise
            except (CorruptObject, UnknownSchema, OSError) as error:
                damage = error
        return damage


def _describe(error: Exception) -> str:
    if isinstance(error, UsageError):
        return FOREIGN
    return unread(error) if isinstance(error, OSError) else str(error)


def _do(jobs: Iterable[Callable[[], object]], what: str, progress: Progress) -> None:
    waiting = list(jobs)
    for position, _ in enumerate(for_each(lambda job: job(), waiting)):
        progress(what, position, len(waiting))
