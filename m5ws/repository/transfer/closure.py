"""All needs of a snapshot or a run: its objects, and its references in publishing order."""

from collections.abc import Callable, Iterable
from functools import partial

from m5ws.errors import NotFound
from m5ws.records import codec
from m5ws.records.base import Digest, Record
from m5ws.records.checkpoint import Checkpoint
from m5ws.records.incident import INCIDENTS, Incident
from m5ws.records.job import Job
from m5ws.records.ledger import NodeStarted
from m5ws.records.log import LOGS, LogPart
from m5ws.records.note import Note
from m5ws.records.outputs import OutputFiles
from m5ws.records.run import Run
from m5ws.records.snapshot import Snapshot
from m5ws.records.tree import Slice
from m5ws.records.verdict import JointVerdict
from m5ws.repository import bindings, concurrency
from m5ws.repository.ledger import ledger
from m5ws.repository.reachability.links import iter_links
from m5ws.repository.references import checkpoints, jobs, notes, outputs, run_index, runs, snapshots
from m5ws.repository.references.ids import Kind
from m5ws.repository.repository import Repository


def roots(repo: Repository, wanted: Iterable[tuple[Kind, str]]) -> list[tuple[Kind, str]]:
    """Return `wanted` and their prerequisites: the snapshot of a run, and the original and recheck of a replay."""
    needed: dict[tuple[Kind, str], None] = {}
    for kind, name in wanted:
        chain: dict[str, Run] = {}
        current: str | None = name if kind == "run" else None
        while current is not None and current not in chain:
            chain[current] = runs.load(repo, current)
            current = chain[current].reproduces
        for run in reversed(chain.values()):
            needed |= {("snapshot", run.snapshot): None, **_rechecks(repo, run), ("run", run.id): None}
        needed[(kind, name)] = None
    return list(needed)


def _rechecks(repo: Repository, run: Run) -> dict[tuple[Kind, str], None]:
    """Return the other replays that a replay's verdict depends on. They have the same original."""
    judged = runs.verdict(repo, run)
    rechecks: dict[tuple[Kind, str], None] = {}
    for name in judged.replays[1:] if judged is not None else ():
        rechecks |= {("snapshot", runs.load(repo, name).snapshot): None, ("run", name): None}
    return rechecks


def references(repo: Repository, kind: Kind, name: str) -> list[str]:
    """Return the keys of a snapshot's or run's references, in publishing order. Raises NotFound.

    For a run in progress this is a consistent state: chains are complete, and an attempt's end comes after everything
    before it.
    """
    if kind == "snapshot":
        keys = [f"snapshots/{name}/{annotation}" for annotation in repo.store.names(f"snapshots/{name}/")]
        if not keys:
            raise NotFound(f"no snapshot {name}")
        snapshot = repo.objects.get_record(name, Snapshot)
        annotations = snapshots.annotations(repo, name)
        indexed = {key for each in annotations for key in snapshots.index_keys(name, snapshot, each)}
        return [*keys, *(key for key in sorted(indexed) if repo.store.stat(key) is not None)]
    keys = [*runs.link_keys(runs.load(repo, name)), f"runs/{name}/run"]
    for attempt in ledger.attempts(repo, name):
        # Listed before the checkpoints, so the copy of a run in progress has all that its events name.
        chains = [f"runs/{name}/ledger/{attempt:04d}/{node}/" for node in ledger.nodes(repo, name, attempt)]
        batches = [chain + batch for chain in chains for batch in filter(bindings.is_number, repo.store.names(chain))]
        keys += batches[:1]
        made = [label for label in checkpoints.names(repo, name) if checkpoints.attempt_of(label) == attempt]
        keys += [f"runs/{name}/checkpoints/{label}" for label in made]
        written = [label for label in outputs.names(repo, name) if outputs.attempt_of(label) == attempt]
        keys += [outputs.key(name, label) for label in written]
        keys += batches[1:]
    keys += [checkpoints.pin_key(name, label) for label in checkpoints.kept(repo, name)]
    if runs.verdict(repo, runs.load(repo, name)) is not None:
        keys.append(f"runs/{name}/verdict")
    about_run = ((runs.joints_of(name), JointVerdict), (notes.prefix(name), Note), (f"{INCIDENTS}{name}/", Incident))
    for prefix, record in (*about_run, (jobs.prefix(name), Job)):
        keys += bindings.records(repo.store, prefix, record)
    logged = [stat.key for stat in repo.store.list(f"{LOGS}{name}/")]
    for _ in concurrency.for_each(lambda key: bindings.record(repo.store, key, LogPart), logged):
        pass
    # Summaries of attempts, and keys in the index, are derived from the other records.
    prefixes = filter(None, (f"runs/{name}/summaries/", run_index.folder(runs.load(repo, name))))
    derived = [f"{prefix}{key}" for prefix in prefixes for key in repo.store.names(prefix)]
    return [*keys, *logged, *derived]


def closure(repo: Repository, kind: Kind, name: str) -> dict[Digest, int]:
    """Return every object that a snapshot or run needs, with its length in bytes, in the order of publishing.

    A run's objects belong to its ledger, its checkpoints, and the checkpoint that a fork starts from; `roots`
    returns its other prerequisites. A fork's parent is excluded, because it would add all its checkpoints. Records are
    read and checked. The length of other objects is the minimum that their names need, which is the full length for an
    object named whole. Raises NotFound, CorruptObject.
    """
    needs: dict[Digest, int] = {}
    walked: set[Digest] = set()
    if kind == "snapshot":
        _walk(repo, name, Snapshot, needs, walked)
        for annotation in snapshots.annotations(repo, name):
            if annotation.observed is not None:
                _bytes(repo, annotation.observed, needs)
        return needs
    for attempt in ledger.attempts(repo, name):
        for _, event in ledger.read_events(repo, name, attempt):
            if isinstance(event, NodeStarted):
                _bytes(repo, event.observed, needs)
    if (parent := runs.load(repo, name).parent) is not None:
        where = checkpoints.key(parent.run, parent.checkpoint)
        _walk_checkpoint(repo, where, parent.digest, needs, walked, f"runs/{name}/run")
    own = [checkpoints.key(name, label) for label in checkpoints.names(repo, name)]
    for where in [*own, *(checkpoints.pin_key(name, label) for label in checkpoints.kept(repo, name))]:
        _walk_checkpoint(repo, where, bindings.line(repo.store, where), needs, walked)
    for label in outputs.names(repo, name):
        _walk(repo, outputs.find(repo, name, label)[0], OutputFiles, needs, walked)
    return needs


def of_checkpoint(repo: Repository, digest: Digest) -> dict[Digest, int]:
    """Return every object that a checkpoint needs, as `closure`. Raises NotFound, CorruptObject."""
    needs: dict[Digest, int] = {}
    _walk(repo, digest, Checkpoint, needs, set())
    return needs


def start(repo: Repository, kind: Kind, name: str) -> dict[Digest, int]:
    """Return the objects that a machine needs to start from a snapshot or run, as `closure`.

    For a run these include its newest checkpoint, else the checkpoint a fork starts from, else the newest output files.
    """
    if kind == "snapshot":
        return closure(repo, kind, name)
    run = runs.load(repo, name)
    needs = closure(repo, "snapshot", run.snapshot)
    first = [run.parent.digest] if run.parent is not None else []
    own = [checkpoints.digest(repo, name, label) for label in checkpoints.valid(repo, name)[-1:]]
    for digest in own or first:
        _walk(repo, digest, Checkpoint, needs, set())
    stored = outputs.names(repo, name) if not own and not first else []
    for label in outputs.at(stored, stored[-1]) if stored else ():
        _walk(repo, outputs.find(repo, name, label)[0], OutputFiles, needs, set())
    return needs


def _walk_checkpoint(
    repo: Repository, where: str, digest: Digest, needs: dict[Digest, int], walked: set[Digest], by: str = ""
) -> None:
    """Add the objects that the checkpoint under a key needs. A record walked before is checked against this key too."""
    if digest in walked:
        bindings.load_checkpoint(repo.objects, where, digest, by)
    else:
        _walk(repo, digest, Checkpoint, needs, walked, partial(bindings.check, where, by=by))


def _bytes(repo: Repository, digest: Digest, needs: dict[Digest, int]) -> None:
    if digest not in needs:
        needs[digest] = len(repo.objects.get(digest))


def _walk(
    repo: Repository,
    digest: Digest,
    kind: type[Record],
    needs: dict[Digest, int],
    walked: set[Digest],
    check: Callable[[Record], object] = lambda _: None,
) -> None:
    # Not by `needs`: a file can have the bytes of a record, and then the record's links were not followed.
    if digest in walked:
        return
    walked.add(digest)
    data = repo.objects.get(digest)
    record = codec.decode(data, kind, f"object {digest}")
    check(record)
    for target in iter_links(repo.objects, digest, record):
        if isinstance(target, Slice):
            needs[target.object] = max(needs.get(target.object, 0), target.offset + target.size_bytes)
        else:
            _walk(repo, target[0], target[1], needs, walked)
    needs[digest] = len(data)
