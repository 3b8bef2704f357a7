"""All that a snapshot or a run needs: the objects, and the references in the order in which they are published."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from m5ws.errors import NotFound
from m5ws.records import codec
from m5ws.records.base import Digest, Record
from m5ws.records.checkpoint import Checkpoint
from m5ws.records.outputs import ANY_OUTPUTS
from m5ws.records.run import Run
from m5ws.records.snapshot import Annotation, Snapshot
from m5ws.records.tree import Packing, Slice
from m5ws.records.verdict import JointVerdict
from m5ws.repository import bindings, checkpoints, concurrency, outputs, runs, snapshots
from m5ws.repository.files import trees
from m5ws.repository.ids import Kind
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.ledger import LAUNCHER
from m5ws.repository.reachability.links import named
from m5ws.repository.repository import Repository

Check = Callable[[Record], object]
"""Raises for a record that does not belong where it was named."""


def _nothing(_: Record) -> None:
    pass


def roots(repo: Repository, wanted: Iterable[tuple[Kind, str]]) -> list[tuple[Kind, str]]:
    """Return `wanted` with what they stand on: a run's snapshot, and of a replay its original and its recheck."""
    found: dict[tuple[Kind, str], None] = {}
    for kind, name in wanted:
        chain: dict[str, Run] = {}
        one: str | None = name if kind == "run" else None
        while one is not None and one not in chain:
            chain[one] = runs.load(repo, one)
            one = chain[one].reproduces
        for run in reversed(chain.values()):
            found |= {("snapshot", run.snapshot): None, **_rechecks(repo, run), ("run", run.id): None}
        found[(kind, name)] = None
    return list(found)


def _rechecks(repo: Repository, run: Run) -> dict[tuple[Kind, str], None]:
    """Return the other replays that a replay's verdict rests on; they have the same original."""
    judged = runs.verdict(repo, run)
    found: dict[tuple[Kind, str], None] = {}
    for name in judged.replays[1:] if judged is not None else ():
        found |= {("snapshot", runs.load(repo, name).snapshot): None, ("run", name): None}
    return found


def references(repo: Repository, kind: Kind, name: str) -> list[str]:
    """Return the keys that make a snapshot or run known, in publishing order. Raises NotFound.

    Of a run that is going on it is a moment's: chains that are whole, and an attempt's end only with all before it.
    """
    if kind == "snapshot":
        keys = [f"snapshots/{name}/{said}" for said in repo.store.names(f"snapshots/{name}/")]
        if not keys:
            raise NotFound(f"there is no snapshot {name}")
        # The first that is there makes it known: it is one whose packings are among what the snapshot needs.
        said = dict(zip(keys, concurrency.each(partial(_packings_in, repo), keys), strict=True))
        needed = set(trees.counting(repo.objects, said.values(), lenient=True))
        return sorted(keys, key=lambda key: not needed.issuperset(said[key].values()))
    keys = [f"runs/{name}/run"]
    for attempt in ledger.attempts(repo, name):
        # The launcher first: its last event speaks of what the ranks had written by then.
        launcher = _batches(repo, name, attempt, LAUNCHER)
        ranks = [rank for rank in ledger.ranks(repo, name, attempt) if rank != LAUNCHER]
        keys += launcher[:1]
        for rank in ranks:
            keys += _batches(repo, name, attempt, rank)
        made = [label for label in checkpoints.names(repo, name) if checkpoints.attempt_of(label) == attempt]
        keys += [f"runs/{name}/checkpoints/{label}" for label in made]
        written = [label for label in outputs.names(repo, name) if outputs.attempt_of(label) == attempt]
        keys += [outputs.key(name, label) for label in written]
        keys += launcher[1:]
    keys += [checkpoints.pin_key(name, label) for label in checkpoints.kept(repo, name)]
    if runs.verdict(repo, runs.load(repo, name)) is not None:
        keys.append(f"runs/{name}/verdict")
    joints = [f"{runs.joints_of(name)}{stamp}" for stamp in repo.store.names(runs.joints_of(name))]
    for key in joints:
        bindings.record(repo.store, key, JointVerdict)
    return keys + joints


def _packings_in(repo: Repository, key: str) -> Mapping[Digest, Digest]:
    return bindings.record(repo.store, key, Annotation).packings


def _batches(repo: Repository, run: str, attempt: int, rank: str) -> list[str]:
    prefix = f"runs/{run}/ledger/{attempt:04d}/{rank}/"
    return [prefix + batch for batch in repo.store.names(prefix) if ledger.is_number(batch)]


def closure(repo: Repository, kind: Kind, name: str) -> dict[Digest, int]:
    """Return every object that a snapshot or run needs, with its length in bytes; what is named before what names it.

    A run's objects are those of its ledger and checkpoints, and the checkpoint that a fork starts from; `roots` says
    what else it stands on. A fork's parent is not among it: that would be all its checkpoints. Records are read,
    and checked, on the way; of objects of bytes the length is the least that their names need, which is all of it
    where they are named whole. Raises NotFound, CorruptObject.
    """
    needs: dict[Digest, int] = {}
    walked: set[Digest] = set()
    if kind == "snapshot":
        _walk(repo, name, Snapshot, needs, walked)
        said = snapshots.annotations(repo, name)
        for one in said:
            if one.observed is not None:
                _bytes(repo, one.observed, needs)
        for packing in trees.counting(repo.objects, [one.packings for one in said], lenient=True):
            _walk(repo, packing, Packing, needs, walked)
        return needs
    for attempt in ledger.attempts(repo, name):
        for rank in ledger.ranks(repo, name, attempt):
            for event in ledger.events(repo, name, attempt, rank):
                if (observed := getattr(event, "observed", None)) is not None:
                    _bytes(repo, observed, needs)
    if (parent := runs.load(repo, name).parent) is not None:
        where = checkpoints.key(parent.run, parent.checkpoint)
        _walk_checkpoint(repo, where, parent.digest, needs, walked, f"runs/{name}/run")
    for where in _checkpoints(repo, name):
        _walk_checkpoint(repo, where, bindings.line(repo.store, where), needs, walked)
    for label in outputs.names(repo, name):
        _walk(repo, outputs.find(repo, name, label)[0], ANY_OUTPUTS, needs, walked)
    return needs


def _checkpoints(repo: Repository, run: str) -> Iterator[str]:
    """Yield the key of each checkpoint that a run has or keeps."""
    yield from (checkpoints.key(run, label) for label in checkpoints.names(repo, run))
    yield from (checkpoints.pin_key(run, label) for label in checkpoints.kept(repo, run))


def of_checkpoint(repo: Repository, digest: Digest) -> dict[Digest, int]:
    """Return, as `closure`, every object that a checkpoint needs. Raises NotFound, CorruptObject."""
    needs: dict[Digest, int] = {}
    _walk(repo, digest, Checkpoint, needs, set())
    return needs


def start(repo: Repository, kind: Kind, name: str) -> dict[Digest, int]:
    """Return, as `closure`, what a machine needs to start from a snapshot or run: of a run, the newest checkpoint.

    Of a fork that has none yet, it is the one that it starts from; of a run without any, its newest output files.
    """
    if kind == "snapshot":
        return closure(repo, kind, name)
    run = runs.load(repo, name)
    needs = closure(repo, "snapshot", run.snapshot)
    first = [run.parent.digest] if run.parent is not None else []
    own = [checkpoints.digest(repo, name, label) for label in checkpoints.valid(repo, name)[-1:]]
    for digest in own or first:
        _walk(repo, digest, Checkpoint, needs, set())
    for label in outputs.names(repo, name)[-1:] if not own and not first else ():
        _walk(repo, outputs.find(repo, name, label)[0], ANY_OUTPUTS, needs, set())
    return needs


def _walk_checkpoint(
    repo: Repository, where: str, digest: Digest, needs: dict[Digest, int], walked: set[Digest], by: str = ""
) -> None:
    """Add the objects that the checkpoint under a key needs; a record walked before is checked against this key."""
    if digest in walked:
        bindings.named(repo.objects, where, digest, by)
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
    check: Check = _nothing,
) -> None:
    # Not by `needs`: a file may have the bytes of a record, and then nothing was said of what the record names.
    if digest in walked:
        return
    walked.add(digest)
    data = repo.objects.get(digest)
    record = codec.decode(data, kind, f"object {digest}")
    check(record)
    for found in named(repo.objects, digest, record):
        if isinstance(found, Slice):
            needs[found.object] = max(needs.get(found.object, 0), found.offset + found.size_bytes)
        else:
            _walk(repo, found[0], found[1], needs, walked)
    needs[digest] = len(data)
