"""Snapshots and their annotations.

A snapshot is published by its first annotation. The reference `snapshots/<id>/…` is written after every object that the
snapshot names, so a visible snapshot is complete (promise 1).
"""

import os

from m5ws import secret_gate
from m5ws.errors import NotFound
from m5ws.records.base import Digest
from m5ws.records.snapshot import Annotation, Snapshot
from m5ws.repository import bindings, concurrency, publishing
from m5ws.repository.files import trees
from m5ws.repository.gc_plans import RetryPolicy
from m5ws.repository.reachability.reach import ReachableObjects
from m5ws.repository.repository import Repository


def publish(
    repo: Repository, snapshot: Snapshot, annotation: Annotation, patience: RetryPolicy | None = None
) -> Digest:
    """Publish a snapshot whose trees are durable, and return its id.

    Raises ObjectDeleted if gc has deleted some of the objects: upload and publish all of them again.
    """
    digest = repo.objects.put_record(snapshot)
    stamp = f"{int(annotation.created_s * 1000):014d}-{os.urandom(4).hex()}"

    def needs() -> set[bytes]:
        reach = ReachableObjects(repo.objects)
        reach.snapshot(digest)
        reach.annotation(annotation)
        return reach.digests

    def create() -> None:
        # Published from here on.
        bindings.create(repo.store, f"snapshots/{digest}/{stamp}", secret_gate.masked(annotation))

    publishing.publish(repo, needs, create, run=None, patience=patience)
    return digest


def load(repo: Repository, snapshot_id: Digest) -> Snapshot:
    """Return a published snapshot. Raises NotFound, CorruptObject."""
    if not repo.store.names(f"snapshots/{snapshot_id}/"):
        raise NotFound(f"no snapshot {snapshot_id}")
    return repo.objects.get_record(snapshot_id, Snapshot)


def read_file(repo: Repository, snapshot: Snapshot, path: str) -> bytes | None:
    """Return a file of a loaded snapshot by its path in the workspace; None if there is none, or a link."""
    wanted = os.fsencode(os.path.normpath(path))
    for tree in dict.fromkeys(snapshot.trees.values()):
        for entry in trees.load(repo.objects, tree).entries:
            if entry.path == wanted and entry.link is None:
                return trees.read_file(repo.objects, entry)
    return None


def annotations(repo: Repository, snapshot_id: Digest) -> list[Annotation]:
    """Return the annotations of a snapshot, oldest first."""
    stats = repo.store.list(f"snapshots/{snapshot_id}/")
    return list(concurrency.for_each(lambda stat: bindings.record(repo.store, stat.key, Annotation), stats))


def created(repo: Repository) -> dict[Digest, int]:
    """Return the time of the first annotation of each snapshot, in milliseconds. One listing; the keys have it."""
    times: dict[Digest, int] = {}
    for stat in repo.store.list("snapshots/"):
        _, snapshot, name = stat.key.split("/", 2)
        time, _, _ = name.partition("-")
        time_ms = int(time) if time.isascii() and time.isdigit() else 0
        times[snapshot] = min(time_ms, times.get(snapshot, time_ms))
    return times


def ids(repo: Repository) -> list[Digest]:
    """Return the ids of all published snapshots, sorted."""
    return list(repo.store.names("snapshots/"))
