"""Snapshots and what is said about them.

A snapshot is published by its first annotation: the reference `snapshots/<id>/…` is written after every
object that the snapshot names, so whoever finds it can read all of it (promise 1).
"""

import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

import msgspec

from m5ws.errors import NotFound
from m5ws.records.base import Digest
from m5ws.records.snapshot import Annotation, Snapshot
from m5ws.repository import bindings, concurrency, presence, publishing
from m5ws.repository.files import trees
from m5ws.repository.gc_plans import Patience
from m5ws.repository.publishing import Vanished
from m5ws.repository.reachability.reach import Reach
from m5ws.repository.repository import Repository


def thread() -> Executor:
    """Return what does one thing beside another."""
    return ThreadPoolExecutor(1, thread_name_prefix="m5ws-publish")


def publish(
    repo: Repository,
    snapshot: Snapshot,
    annotation: Annotation,
    patience: Patience | None = None,
    workers: Callable[[], Executor] = thread,
) -> Digest:
    """Publish a snapshot whose trees are durable already, and return its id; the annotation is given their packings.

    Raises Vanished if gc deleted some of it meanwhile, after which all is to be uploaded and published again.
    """
    places = packings(repo, snapshot)
    with workers() as pool:
        record = pool.submit(repo.objects.put_record, snapshot)
        lost = presence.missing(repo.objects, dict.fromkeys(places.values(), 0))
    if lost:
        repo.locations.forget_trees()
        raise Vanished(f"where small files lie was written, and is not there: packing {min(lost)}")
    annotation, digest = msgspec.structs.replace(annotation, packings=places), record.result()
    stamp = f"{int(annotation.created_s * 1000):014d}-{os.urandom(4).hex()}"

    def needs() -> set[bytes]:
        reach = Reach(repo.objects)
        reach.snapshot(digest)
        reach.annotation(annotation)
        return reach.digests

    def create() -> None:
        # Published from here on.
        bindings.create(repo.store, f"snapshots/{digest}/{stamp}", annotation)

    try:
        publishing.publish(repo, needs, create, patience=patience)
    except Vanished:
        repo.locations.forget_trees()
        raise
    return digest


def packings(repo: Repository, snapshot: Snapshot) -> dict[Digest, Digest]:
    """Return the packings of a snapshot's trees that were written or loaded by `repo`. Raises as `trees.located`."""
    found = {
        tree: trees.packing_of(repo.objects, repo.locations, tree) for tree in dict.fromkeys(snapshot.trees.values())
    }
    return {tree: packing for tree, packing in found.items() if packing is not None}


def load(repo: Repository, snapshot_id: Digest) -> Snapshot:
    """Return a published snapshot, whose files can be read by `trees.located` then. Raises NotFound, CorruptObject."""
    if not repo.store.names(f"snapshots/{snapshot_id}/"):
        raise NotFound(f"there is no snapshot {snapshot_id}")
    snapshot = repo.objects.get_record(snapshot_id, Snapshot)
    repo.locations.add_snapshot(snapshot_id, snapshot.trees.values())
    return snapshot


def annotations(repo: Repository, snapshot_id: Digest) -> list[Annotation]:
    """Return what has been said about a snapshot, oldest first."""
    found = repo.store.list(f"snapshots/{snapshot_id}/")
    return list(concurrency.each(lambda stat: bindings.record(repo.store, stat.key, Annotation), found))


def ids(repo: Repository) -> list[Digest]:
    """Return the ids of all published snapshots, in the order of their ids."""
    return list(repo.store.names("snapshots/"))
