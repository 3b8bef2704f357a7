"""The space and memory that a run probably needs: the files of its snapshot, and the sizes of an earlier run.

For a planned run, the earlier run is the newest with its snapshot and command: other jobs of a shared store do not
count. Without a plan, snapshot and run are the newest of the store. The checks name the earlier run.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import msgspec

from m5ws.checkpoints import listing
from m5ws.checkpoints.resolve import CheckpointRef
from m5ws.records.ledger import OutputsStored
from m5ws.records.run import Run
from m5ws.records.snapshot import Snapshot
from m5ws.repository.files import trees
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints, run_index, runs, snapshots
from m5ws.repository.repository import Repository

_READ = 1000
"""The number of newest runs among which an earlier run is looked for."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """Needs of a run on one of `nodes` nodes. The sizes are of an earlier `run`; None if the store has none.

    `state_bytes` is a checkpoint's size divided by the nodes. `wanted` are versions of `[environment] wanted`.
    """

    run: str | None = None
    files: int = 0
    files_bytes: int = 0
    checkpoint_bytes: int = 0
    outputs_bytes: int = 0
    nodes: int = 1
    ranks: int = 1
    wanted: Mapping[str, str] = {}

    @property
    def state_bytes(self) -> int:
        return self.checkpoint_bytes // self.nodes


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that a run writes to, with the bytes and the files that it writes there."""

    use: str
    path: Path
    size_bytes: int
    files: int = 0


def find(repo: Repository, planned: Run | None = None, nodes: int = 1) -> Needs:
    """Return the needs of a planned run, or of the newest snapshot and run. Raises CorruptObject, NotFound."""
    needs = Needs()
    snapshot = planned.snapshot if planned is not None else next((name for name, _ in snapshots.newest(repo)), None)
    if snapshot is not None:
        needs = _with_snapshot(repo, needs, snapshots.load(repo, snapshot))
    if (run := next(_earlier(repo, planned), None)) is not None:
        needs = _with_run(repo, needs, run)
    if planned is None:
        return needs
    return msgspec.structs.replace(needs, nodes=nodes, ranks=planned.spec.nproc or 1)


def _earlier(repo: Repository, planned: Run | None) -> Iterator[str]:
    """Yield the runs that have begun, the newest first: of a planned run's snapshot and command, or all."""
    for name, facts in islice(run_index.newest(repo), _READ):
        if not facts.begun or facts.created is None:
            continue
        is_near = planned is None or facts.created.snapshot == planned.snapshot
        if is_near and (planned is None or runs.load(repo, name).spec.command == planned.spec.command):
            yield name


def _with_snapshot(repo: Repository, needs: Needs, snapshot: Snapshot) -> Needs:
    loaded = [trees.load(repo.objects, tree) for tree in dict.fromkeys(snapshot.trees.values())]
    return msgspec.structs.replace(
        needs,
        files=sum(len(tree.entries) for tree in loaded),
        files_bytes=sum(tree.size_bytes for tree in loaded),
        wanted=snapshot.declared.wanted,
    )


def _with_run(repo: Repository, needs: Needs, name: str) -> Needs:
    attempt, run = ledger.attempts(repo, name)[-1], runs.load(repo, name)
    started, labels = ledger.started(repo, name, attempt), checkpoints.valid(repo, name)
    events = ledger.published(repo, name, attempt)
    size = 0
    if labels:
        digest = checkpoints.digest(repo, name, labels[-1])
        size = listing.view(repo, CheckpointRef(run=name, name=labels[-1], digest=digest)).size_bytes
    return msgspec.structs.replace(
        needs,
        run=name,
        checkpoint_bytes=size,
        outputs_bytes=max((event.size_bytes for event in events if isinstance(event, OutputsStored)), default=0),
        nodes=started.nodes if started is not None else 1,
        ranks=run.spec.nproc or 1,
    )
