"""Everything that must stay: every snapshot, run and kept checkpoint, and all objects reachable from them.

Of a removed run, checkpoints and output files need not stay.

An unreadable root raises an error: nothing may be deleted while the needed objects are unknown.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Literal, TypeVar

import msgspec

from m5ws.errors import NotFound
from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.gc import RetentionRules, RetiredReference
from m5ws.records.outputs import OutputFiles
from m5ws.records.run import Run
from m5ws.records.snapshot import Snapshot
from m5ws.records.verdict import Verdict
from m5ws.repository import bindings, removals
from m5ws.repository.ledger import ledger
from m5ws.repository.reachability.reach import ReachableObjects
from m5ws.repository.references import checkpoints, outputs, runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.store.interface import ObjectStat

_RESUMABLE = ("dcp/1", "deepspeed/1")
A = TypeVar("A")
T = TypeVar("T")

Workers = Callable[[], Executor]

MayRetire = Callable[[RetiredReference, ObjectStat], bool]
"""Called for each reference that could be retired, with its status in the store."""

Judged = tuple[RetiredReference, bool]
"""A reference that need not stay, and True if it may be retired now."""


class Roots(msgspec.Struct, frozen=True, kw_only=True):
    """The needed objects, and the references to delete, whose objects are not needed.

    `postponed` counts the objects that are needed only by references that may not be retired yet.
    """

    reach: ReachableObjects
    retired: tuple[RetiredReference, ...]
    postponed: int = 0


def threads() -> Executor:
    """Return an executor for many reads and deletes, each with a round trip."""
    return ThreadPoolExecutor(16, thread_name_prefix="m5ws-gc")


def read(
    repo: Repository,
    rules: RetentionRules,
    may_retire: MayRetire,
    progress: Progress | None = None,
    workers: Workers = threads,
) -> Roots:
    """Read every root. Raises NotFound, CorruptObject, UnknownSchema for a damaged root."""
    reach = ReachableObjects(repo.objects)
    retired: list[RetiredReference] = []
    postponed: list[RetiredReference] = []
    say = progress or (lambda *_: None)
    with workers() as pool:

        def each(what: str, names: Sequence[A], act: Callable[[A], T]) -> Iterator[T]:
            for position, result in enumerate(pool.map(act, names)):
                say(what, position, len(names))
                yield result

        # Pins first: a reference is deleted only if there was no pin before its run was read.
        _drain(each("reading kept checkpoints", repo.store.names(checkpoints.PINS), partial(_pins, repo, reach)))
        _drain(each("reading snapshots", repo.store.names("snapshots/"), partial(_snapshot, repo, reach)))
        records = list(each("reading runs", runs.ids(repo), partial(runs.load, repo)))
        judged = records if rules.retire else []
        evidence = _evidence(each("reading verdicts", judged, partial(runs.verdict, repo)))
        origins = _origins(records)
        removed = set(removals.removed_runs(repo))
        # A damaged record of a removal stops gc.
        _drain(each("reading removals", sorted(removed), partial(removals.load, repo)))

        def of_run(run: Run) -> list[Judged]:
            own = (evidence.get(run.id, set()), origins.get(run.id, set()))
            return _run(repo, reach, run, rules, *own, may_retire, removed=run.id in removed)

        for references in each("reading ledgers", records, of_run):
            for reference, is_due in references:
                (retired if is_due else postponed).append(reference)
        lasting = len(reach.digests)
        _drain(each("reading young references", postponed, partial(_add, repo, reach)))
    return Roots(reach=reach, retired=tuple(retired), postponed=len(reach.digests) - lasting)


def _drain(work: Iterator[object]) -> None:
    for _ in work:
        pass


def _pins(repo: Repository, reach: ReachableObjects, run: str) -> None:
    for label in checkpoints.kept(repo, run):
        _reach(repo, reach, checkpoints.pin_key(run, label))


def _reach(repo: Repository, reach: ReachableObjects, where: str, digest: Digest | None = None, by: str = "") -> None:
    """Add the checkpoint named by the line under a key. Raises NotFound, CorruptObject, Misplaced."""
    digest = digest or bindings.line(repo.store, where)
    # A checkpoint reached by another key is read again, because it must belong under this key too.
    bindings.check(where, reach.record(digest, Checkpoint) or repo.objects.get_record(digest, Checkpoint), by)


def _snapshot(repo: Repository, reach: ReachableObjects, snapshot: Digest) -> None:
    for annotation in snapshots.annotations(repo, snapshot):
        reach.annotation(annotation)
    reach.record(snapshot, Snapshot)


def _run(
    repo: Repository,
    reach: ReachableObjects,
    record: Run,
    rules: RetentionRules,
    evidence: set[int],
    origins: set[str],
    may_retire: MayRetire,
    *,
    removed: bool,
) -> list[Judged]:
    """Add a run and its checkpoints, and return the references that need not stay. Forks start from `origins`.

    The output files of a `removed` run need not stay. A checkpoint of it stays if a fork starts from it, an attempt in
    progress resumed from it, or a pin keeps it.
    """
    run = record.id
    reach.record(record.snapshot, Snapshot)
    if (parent := record.parent) is not None:
        _reach(repo, reach, checkpoints.key(parent.run, parent.checkpoint), parent.digest, f"runs/{run}/run")
    judged = _outputs(repo, reach, run, may_retire, everything=removed)
    kept = _attempts(repo, reach, run) | origins
    stats = {stat.key: stat for stat in repo.store.list(f"runs/{run}/checkpoints/")}
    references = list(_references(repo, run, "checkpoint", checkpoints.names(repo, run)))
    past: set[str] = set()
    if removed:
        past = {label for reference in references if (label := reference.checkpoint) is not None}
        past -= set(checkpoints.kept(repo, run))
    elif rules.retire:
        past = _past(repo, run, references, rules, evidence)
    return judged + _sorted_out(repo, reach, references, past - kept, stats, may_retire)


def _outputs(
    repo: Repository, reach: ReachableObjects, run: str, may_retire: MayRetire, *, everything: bool
) -> list[Judged]:
    """Add a run's output files, except copies that need not stay; of a removed run, `everything` need not stay."""
    stats = {stat.key: stat for stat in repo.store.list(outputs.prefix(run))}
    labels = [label for where in stats if outputs.is_name(label := where.rpartition("/")[2])]
    past = set(labels if everything else outputs.superseded(labels))
    return _sorted_out(repo, reach, list(_references(repo, run, "outputs", labels)), past, stats, may_retire)


def _sorted_out(
    repo: Repository,
    reach: ReachableObjects,
    references: Sequence[RetiredReference],
    past: set[str],
    stats: Mapping[str, ObjectStat],
    may_retire: MayRetire,
) -> list[Judged]:
    """Return the references in `past`, which need not stay, and add all other references."""
    judged = []
    for reference in references:
        stat = stats.get(key(reference))
        if (reference.checkpoint or reference.outputs) in past and stat is not None:
            judged.append((reference, may_retire(reference, stat)))
        else:
            _add(repo, reach, reference)
    return judged


def key(reference: RetiredReference) -> str:
    """Return the key of a reference that can be retired."""
    if reference.outputs is not None:
        return outputs.key(reference.run, reference.outputs)
    return checkpoints.key(reference.run, reference.checkpoint or "")


def _references(
    repo: Repository, run: str, kind: Literal["checkpoint", "outputs"], labels: Iterable[str]
) -> Iterator[RetiredReference]:
    """Yield the references of a run with these names, except references retired by another gc since the listing."""
    where = checkpoints.key if kind == "checkpoint" else outputs.key
    for label in labels:
        try:
            yield RetiredReference(run=run, digest=bindings.line(repo.store, where(run, label)), **{kind: label})
        except NotFound:
            continue


def _add(repo: Repository, reach: ReachableObjects, reference: RetiredReference) -> None:
    try:
        if reference.outputs is not None:
            bindings.files(repo.objects, key(reference))
            reach.record(reference.digest, OutputFiles)
        else:
            _reach(repo, reach, key(reference), reference.digest)
    except NotFound:
        if not _retired_meanwhile(repo, reference):
            raise


def _retired_meanwhile(repo: Repository, reference: RetiredReference) -> bool:
    """Return True if another gc has retired the reference since the listing."""
    return repo.store.stat(key(reference)) is None


def _attempts(repo: Repository, reach: ReachableObjects, run: str) -> set[str]:
    """Add the observed environments of attempts.

    Return the checkpoint that the newest attempt resumed from, if it has not ended.
    """
    attempts = ledger.attempts(repo, run)
    for attempt in attempts:
        for start in ledger.node_starts(repo, run, attempt):
            reach.add(start.observed)
    newest = ledger.started(repo, run, attempts[-1]) if attempts else None
    if newest is None or newest.resume is None or ledger.ended(repo, run, attempts[-1]) is not None:
        return set()
    return {newest.resume}


def _past(
    repo: Repository, run: str, references: Sequence[RetiredReference], rules: RetentionRules, evidence: set[int]
) -> set[str]:
    """Return the checkpoints that the rules retire: only checkpoints that a run could resume from."""
    valid = set(checkpoints.valid(repo, run))
    resumable = [
        label for reference in references if (label := reference.checkpoint) is not None and _resumable(repo, reference)
    ]
    kept = retained([label for label in resumable if label in valid], rules)
    kept.update(label for label in resumable if checkpoints.step_of(label) in evidence)
    return set(resumable) - kept - set(checkpoints.kept(repo, run))


def retained(labels: Sequence[str], rules: RetentionRules) -> set[str]:
    """Return the checkpoints that the rules keep, from labels in order of steps. The newest is always kept."""
    if not rules.retire:
        return set(labels)
    kept = set(labels[-(rules.last or 1) :])
    if rules.every is not None:
        kept.update(label for label in labels if checkpoints.step_of(label) % rules.every == 0)
    return kept


def _resumable(repo: Repository, reference: RetiredReference) -> bool:
    try:
        checkpoint = bindings.load_checkpoint(repo.objects, key(reference), reference.digest)
        return repo.objects.get_record(checkpoint.content, Content).format in _RESUMABLE
    except NotFound:
        if not _retired_meanwhile(repo, reference):
            raise
        return False


def _origins(records: Iterable[Run]) -> dict[str, set[str]]:
    """Return, for each run, the checkpoints that forks start from, so that their lineage stays complete."""
    labels: dict[str, set[str]] = {}
    for record in records:
        if record.parent is not None:
            labels.setdefault(record.parent.run, set()).add(record.parent.checkpoint)
    return labels


def _evidence(verdicts: Iterable[Verdict | None]) -> dict[str, set[int]]:
    """Return, for all runs of each verdict, the steps of its divergence, whose checkpoints are evidence."""
    steps: dict[str, set[int]] = {}
    for verdict in verdicts:
        if verdict is not None and verdict.first is not None:
            for run in (verdict.run, *verdict.replays):
                steps.setdefault(run, set()).update({verdict.first.step, verdict.first.tensor_step or 0})
    return steps
