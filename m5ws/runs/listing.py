"""Lists of snapshots and runs, and the full view of one. Reads only.

A damaged or newer record does not hide the other rows: its row contains the error.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from m5ws.environment import attempt_environments
from m5ws.outputs import saved
from m5ws.outputs.kept_work import KeptWork
from m5ws.outputs.saved import OutputsRow
from m5ws.progress import Progress, report
from m5ws.records.base import Digest
from m5ws.records.environment import Observed
from m5ws.records.incident import Incident
from m5ws.records.job import Cancel, Job
from m5ws.records.note import Note, NoteOutcome
from m5ws.records.removal import Removal
from m5ws.records.run import Parent, Run
from m5ws.records.snapshot import Annotation, Snapshot
from m5ws.records.verdict import Change, JointVerdict, Verdict
from m5ws.repository import concurrency, removals
from m5ws.repository.files import trees
from m5ws.repository.references import checkpoints, incidents, lineage, notes, run_index, runs, snapshots
from m5ws.repository.references.run_index import AttemptEnd, RunCreation, RunFacts
from m5ws.repository.references.snapshots import SnapshotFacts
from m5ws.repository.repository import Repository
from m5ws.runs.state import RunState, Standing, load, load_newest

Row = TypeVar("Row")


class SnapshotRow(SnapshotFacts, frozen=True, kw_only=True):
    """A snapshot in a list, with its newest annotation."""

    id: Digest
    problem: str | None = None


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list; `outcome` is the verdict's, for a reproduction that has one.

    `created_s` is by the store's clock. `inexact`: an attempt that has ended repeated a step of an earlier attempt with
    other values. `loss`, `lowest_loss` and its step, `why`, `note_outcome`, `notes` and `changes` are only in tables of
    runs (`run_table`). `changes` are the parameters that are not the same in all runs of the table.
    `rechecks` is the replay that it repeats, if the verdict on that replay names it, `explains` the replay whose
    divergence it explains; only in a run's own view.
    """

    id: str
    created_s: float = 0.0
    name: str | None = None
    user: str | None = None
    host: str | None = None
    purpose: str = "train"
    snapshot: Digest | None = None
    reproduces: str | None = None
    parent: Parent | None = None
    sweep: str | None = None
    standing: Standing = "created"
    inexact: bool = False
    attempts: int = 0
    last_step: int = 0
    total_steps: int | None = None
    outcome: str | None = None
    loss: float | None = None
    lowest_loss: float | None = None
    lowest_step: int | None = None
    why: str | None = None
    note_outcome: NoteOutcome | None = None
    notes: tuple[str, ...] = ()
    changes: dict[str, str | None] = {}
    rechecks: str | None = None
    explains: str | None = None
    problem: str | None = None


class SnapshotSection(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a snapshot: code, config, tokenizer or one dataset, with its tree's digest and size."""

    name: str
    tree: Digest
    files: int
    size_bytes: int


class SnapshotView(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a snapshot; `observed` is the environment of the newest annotation that has one."""

    id: Digest
    snapshot: Snapshot
    parts: tuple[SnapshotSection, ...]
    annotations: tuple[Annotation, ...]
    observed: Observed | None
    runs: tuple[str, ...]


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that counts, by its name: its step, its record's digest, and the digest of its content."""

    name: str
    step: int
    checkpoint: Digest
    content: Digest


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a run; `verdict` rests on it if it is a replay, `replays` are its own replays.

    `outputs` are the files that its script wrote: at the end of its attempts, and copies
    made while it ran.
    `lineage` is the checkpoints that it stands on, the nearest first; not `lineage_whole` where a parent is not in
    this store. `forks` are the runs that start from its checkpoints, `joint` is the newest joint verdict on segments.
    """

    run: Run
    commit: str | None
    standing: Standing
    state: RunState
    observed: Observed | None
    checkpoints: tuple[CheckpointRow, ...]
    outputs: tuple[OutputsRow, ...] = ()
    verdict: Verdict | None
    replays: tuple[RunRow, ...]
    lineage: tuple[Parent, ...] = ()
    lineage_whole: bool = True
    forks: tuple[RunRow, ...] = ()
    joint: JointVerdict | None = None
    notes: tuple[Note, ...] = ()
    removal: Removal | None = None
    environments: dict[int, tuple[Change, ...]] = {}
    """By attempt, how its environment differs from the first attempt's; attempts without a difference are left out."""
    jobs: tuple[Job, ...] = ()
    """Jobs of the run, oldest first, without their settings. Only `show` in a workspace with clusters reads them."""
    cancel: Cancel | None = None
    """The request that ended the newest job that begins attempts."""
    incident: Incident | None = None
    """The incident of the newest failed attempt."""
    kept: tuple[KeptWork, ...] = ()
    """Work of a removed run on this machine."""


class SnapshotList(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshots, newest first; `more` if a limit left out older snapshots."""

    rows: tuple[SnapshotRow, ...]
    more: bool = False


def list_snapshots(repo: Repository, progress: Progress | None = None, limit: int = 0) -> SnapshotList:
    """Return the newest snapshots, at most `limit`; all of them if it is 0.

    The index is read as far as needed. At its end, snapshots that it lacks are read themselves.
    """
    index: dict[Digest, SnapshotFacts | None] = dict(
        itertools.islice(snapshots.newest(repo), limit + 1 if limit else None)
    )
    if not limit or len(index) <= limit:
        index = dict.fromkeys(snapshots.ids(repo)) | index
    rows = _rows(lambda name: _snapshot_row(repo, name, index[name]), [*index], "reading snapshots", progress)
    ordered = sorted(rows, key=lambda row: (-row.created_s, row.id))
    return SnapshotList(rows=tuple(ordered[: limit or None]), more=bool(limit) and len(index) > limit)


def list_runs(
    repo: Repository,
    progress: Progress | None = None,
    index: Mapping[str, RunFacts] | None = None,
    names: Sequence[str] | None = None,
) -> list[RunRow]:
    """Return the rows of runs, of all of them unless `names` has some, newest first.

    `index`: the run index, if the caller has read it.
    """
    known = run_index.load(repo) if index is None else index
    chosen = runs.ids(repo) if names is None else names
    rows = _rows(lambda run: _run_row(repo, run, known.get(run)), chosen, "reading runs", progress)
    return sorted(rows, key=lambda row: -row.created_s)


def _rows(read: Callable[[str], Row], names: Sequence[str], what: str, progress: Progress | None) -> Iterator[Row]:
    """Yield the row of each name. Rows are read in parallel, since a remote store answers late."""
    for done, row in enumerate(concurrency.for_each(read, names)):
        report(progress, what, done, len(names))
        yield row


def view_snapshot(repo: Repository, snapshot_id: Digest) -> SnapshotView:
    """Return all that is known of a snapshot. Raises NotFound, CorruptObject."""
    snapshot = snapshots.load(repo, snapshot_id)
    annotations = snapshots.annotations(repo, snapshot_id)
    observed = next(
        (annotation.observed for annotation in reversed(annotations) if annotation.observed is not None), None
    )
    using = [run for run, fact in runs.facts(repo).items() if fact.snapshot == snapshot_id]
    return SnapshotView(
        id=snapshot_id,
        snapshot=snapshot,
        parts=tuple(_part(repo, name, tree) for name, tree in snapshot.trees.items()),
        annotations=tuple(annotations),
        observed=repo.objects.get_record(observed, Observed) if observed else None,
        runs=tuple(using),
    )


def view_run(repo: Repository, run_id: str) -> RunView:
    """Return all that is known of a run. Raises NotFound, CorruptObject."""
    run, repo = runs.load(repo, run_id), repo.listed(f"runs/{run_id}/")
    state = load(repo, run_id)
    observed = state.newest.observed if state.newest else None
    known = runs.linked(repo, run_id)
    verdicts = runs.verdicts(repo, run_id, known)
    chain, whole = lineage.chain(repo, run)
    stored = {event.name: event for attempt in state.attempts for event in attempt.outputs}
    failed = max((each.attempt for each in state.attempts if each.standing == "failed"), default=None)
    verdict = next((verdict for verdict in verdicts if run_id in verdict.replays), None)
    return RunView(
        run=run,
        commit=repo.objects.get_record(run.snapshot, Snapshot).code.commit,
        standing="refused" if verdict is not None and state.newest is None else state.standing,
        state=state,
        observed=repo.objects.get_record(observed, Observed) if observed else None,
        checkpoints=tuple(
            concurrency.for_each(partial(_checkpoint_row, repo, run_id, state), checkpoints.valid(repo, run_id))
        ),
        outputs=saved.listing(repo, run_id, stored),
        verdict=verdict,
        replays=tuple(
            concurrency.for_each(lambda other: _replay(repo, other, verdicts), runs.replays_among(known, run_id))
        ),
        lineage=chain,
        lineage_whole=whole,
        forks=tuple(concurrency.for_each(lambda other: _run_row(repo, other), _forks(known, run_id))),
        joint=runs.joint(repo, run_id),
        notes=tuple(notes.load(repo, run_id)),
        removal=removals.load(repo, run_id),
        incident=incidents.load(repo, run_id, failed) if failed is not None else None,
        environments=attempt_environments.drift_by_attempt(repo, run_id),
    )


def _checkpoint_row(repo: Repository, run_id: str, state: RunState, name: str) -> CheckpointRow:
    """Return the row of a checkpoint from its event, or from its record if a kill prevented the event."""
    if (event := state.published.get(name)) is not None:
        return CheckpointRow(name=name, step=event.step, checkpoint=event.checkpoint, content=event.content)
    digest, record = checkpoints.read(repo, run_id, name)
    return CheckpointRow(name=name, step=record.step, checkpoint=digest, content=record.content)


def _snapshot_row(repo: Repository, snapshot_id: Digest, facts: SnapshotFacts | None) -> SnapshotRow:
    """Return the row of a snapshot, from its facts in the index if they are there."""
    try:
        facts = facts or snapshots.facts(
            snapshots.load(repo, snapshot_id), snapshots.annotations(repo, snapshot_id)[-1]
        )
    except runs.UNREADABLE as error:
        return SnapshotRow(id=snapshot_id, problem=str(error))
    return SnapshotRow(id=snapshot_id, **msgspec.structs.asdict(facts))


def _run_row(repo: Repository, run_id: str, facts: RunFacts | None = None) -> RunRow:
    """Return the row of a run, from its facts in the index as far as they are there."""
    facts = facts or RunFacts()
    try:
        fact = facts.created or run_index.created(runs.load(repo, run_id))
        end = _end(repo, run_id, facts.ended, facts.begun)
        outcome = facts.outcome or (_outcome(repo, run_id) if fact.reproduces else None)
    except runs.UNREADABLE as error:
        return RunRow(id=run_id, problem=str(error))
    return RunRow(
        id=run_id,
        created_s=fact.created_s,
        name=fact.name,
        purpose="reproduce" if fact.reproduces else "train",
        snapshot=fact.snapshot,
        reproduces=fact.reproduces,
        parent=fact.fork,
        sweep=fact.sweep,
        user=fact.user,
        host=fact.host,
        standing="refused" if outcome is not None and not end.attempt else end.outcome,  # type: ignore[arg-type]
        inexact=facts.inexact,
        attempts=end.attempt,
        last_step=end.last_step,
        total_steps=end.total_steps,
        outcome=outcome,
    )


def _end(repo: Repository, run_id: str, known: AttemptEnd | None, begun: int) -> AttemptEnd:
    """Return the state of the newest attempt of a run: `known`, unless the index has the start of a later attempt."""
    if known is not None and (known.is_final or known.attempt >= begun):
        return _with_steps(repo, run_id, known)
    state = load_newest(repo, run_id)
    end = AttemptEnd(
        attempt=state.newest.attempt if state.newest else 0,
        is_final=False,
        outcome=state.standing,
        last_step=state.last_step,
        total_steps=state.total_steps,
    )
    return _with_steps(repo, run_id, end)


def _with_steps(repo: Repository, run_id: str, end: AttemptEnd) -> AttemptEnd:
    """Return the end of an attempt; if it finished with no step left to do, with the last step before it."""
    if end.last_step or end.outcome != "finished" or end.attempt == 1:
        return end
    return msgspec.structs.replace(end, last_step=load(repo, run_id).last_step)


def _outcome(repo: Repository, run_id: str) -> str | None:
    verdict = runs.verdict(repo, runs.load(repo, run_id))
    return verdict.outcome if verdict is not None else None


def _replay(repo: Repository, run_id: str, verdicts: Sequence[Verdict]) -> RunRow:
    """Return the row of a replay, or of another run that a verdict rests on."""
    row = _run_row(repo, run_id)
    again = next((verdict for verdict in verdicts if run_id in verdict.replays[1:]), None)
    if again is None:
        return row
    if again.explanation is not None and run_id in again.explanation.replays:
        return msgspec.structs.replace(row, outcome=again.outcome, explains=again.replay)
    return msgspec.structs.replace(row, outcome=again.outcome, rechecks=again.replay)


def _forks(known: Mapping[str, RunCreation], run_id: str) -> list[str]:
    """Return the runs that start from a checkpoint of another, oldest first; without replays of forks."""
    forks = [name for name, fact in known.items() if fact.parent == run_id and fact.reproduces is None]
    return sorted(forks, key=lambda name: known[name].created_s)


def _part(repo: Repository, name: str, digest: Digest) -> SnapshotSection:
    tree = trees.load(repo.objects, digest)
    return SnapshotSection(name=name, tree=digest, files=len(tree.entries), size_bytes=tree.size_bytes)
