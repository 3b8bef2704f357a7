"""Snapshots and their annotations.

A snapshot is published by its first annotation. The reference `snapshots/<id>/…` is written after every object that the
snapshot names, so a visible snapshot is complete (promise 1).
"""

import hashlib
from collections.abc import Iterator
from posixpath import join

import msgspec

from m5ws import secret_gate
from m5ws.errors import NotFound
from m5ws.records import sample_ids
from m5ws.records.base import Digest
from m5ws.records.snapshot import Annotation, Manifest, Snapshot
from m5ws.records.tree import Entry
from m5ws.repository import bindings, publishing
from m5ws.repository.files import trees
from m5ws.repository.gc_plans import RetryPolicy
from m5ws.repository.reachability.reach import ReachableObjects
from m5ws.repository.references import index_names
from m5ws.repository.repository import Repository

_MESSAGE_CHARACTERS = 200


class SnapshotFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a snapshot and one of its annotations, for lists. Of the message, the first line."""

    created_s: float = 0.0
    commit: str | None = None
    dirty: bool = False
    author: str | None = None
    branch: str | None = None
    message: str | None = None
    derived_from: Digest | None = None


def names_of(repo: Repository, snapshot_id: Digest, path: str) -> tuple[str, ...]:
    """Return `path`, and the path of each other file with the content of a file there, such as a followed link or a
    copy. Empty if the snapshot has no file at `path`.
    """
    snapshot = load(repo, snapshot_id)
    files = list_files(repo, snapshot)
    wanted = {digest for name, _, digest in files if sample_ids.covers(path, name)}
    # A file of a remote has another kind of digest than an equal file in the store.
    sizes = {size for _, size, digest in files if digest in wanted}
    kinds = {(size, digest.partition(":")[0]) for _, size, digest in files if size in sizes and ":" in digest}
    for entry in entries(repo, snapshot) if kinds else ():
        for kind in (kind for size, kind in kinds if size == entry.size_bytes):
            hasher = hashlib.new(kind, usedforsecurity=False)
            for part in entry.parts:
                hasher.update(repo.objects.read(part))
            same = {entry.digest, f"{kind}:{hasher.hexdigest()}"}
            wanted |= same if same & wanted else set()
    others = {name for name, size, digest in files if size and digest in wanted and not sample_ids.covers(path, name)}
    return (path, *sorted(others)) if wanted else ()


def entries(repo: Repository, snapshot: Snapshot) -> list[Entry]:
    """Return the files in all trees of a snapshot. Raises NotFound, CorruptObject."""
    loaded = (trees.load(repo.objects, tree) for tree in dict.fromkeys(snapshot.trees.values()))
    return [entry for tree in loaded for entry in tree.entries]


def list_files(repo: Repository, snapshot: Snapshot) -> list[tuple[str, int, str]]:
    """Return the path, the size and the digest of each file of a snapshot, also of files that stay in their remote."""
    files = [(entry.name, entry.size_bytes, entry.digest) for entry in entries(repo, snapshot)]
    for remote in snapshot.remote:
        listed = repo.objects.get_record(remote.manifest, Manifest).files
        files += [(join(remote.folder, file.path), file.size_bytes, file.digest) for file in listed]
    return files


def facts(snapshot: Snapshot, annotation: Annotation) -> SnapshotFacts:
    """Return the facts of a snapshot's annotation."""
    return SnapshotFacts(
        created_s=annotation.created_s,
        commit=snapshot.code.commit,
        dirty=snapshot.code.dirty,
        author=annotation.author,
        branch=annotation.branch,
        message=annotation.message.split("\n")[0][:_MESSAGE_CHARACTERS] if annotation.message else None,
        derived_from=annotation.derived_from,
    )


def index_keys(snapshot_id: Digest, snapshot: Snapshot, annotation: Annotation) -> set[str]:
    """Return the keys of an annotation in the index."""
    folder = index_names.folder("snapshots", snapshot_id, annotation.created_s)
    names = index_names.names(snapshot_id, "annotated", facts(snapshot, annotation))
    return set() if folder is None else {folder + name for name in names}


def write_index(repo: Repository, snapshot_id: Digest, snapshot: Snapshot, annotation: Annotation) -> None:
    """Create the keys of a published annotation in the index, once."""
    index_names.write(repo.store, index_keys(snapshot_id, snapshot, annotation))


def newest(repo: Repository) -> Iterator[tuple[Digest, SnapshotFacts]]:
    """Yield the snapshots that the index has, each with its newest annotation, the newest first."""
    seen = set[Digest]()
    for snapshot_id, names in index_names.newest(repo.store, "snapshots"):
        for _, value in index_names.facts(snapshot_id, names, {"annotated": SnapshotFacts}):
            if snapshot_id not in seen:
                seen.add(snapshot_id)
                yield snapshot_id, value


def publish(
    repo: Repository, snapshot: Snapshot, annotation: Annotation, patience: RetryPolicy | None = None
) -> Digest:
    """Publish a snapshot whose trees are durable, and return its id.

    Raises ObjectDeleted if gc has deleted some of the objects: upload and publish all of them again.
    """
    digest, stored = repo.objects.put_record(snapshot), secret_gate.masked(annotation)

    def needs() -> set[bytes]:
        reach = ReachableObjects(repo.objects)
        reach.record(digest, Snapshot)
        reach.annotation(annotation)
        return reach.digests

    def create() -> None:
        # Published from here on.
        bindings.create_at(repo.store, f"snapshots/{digest}/", stored.created_s, stored)

    publishing.publish(repo, needs, create, run=None, patience=patience)
    repo.snapshots.add(digest)
    write_index(repo, digest, snapshot, stored)
    return digest


def is_published(repo: Repository, snapshot_id: Digest) -> bool:
    """Return True if the store lists a snapshot."""
    if snapshot_id not in repo.snapshots and repo.store.names(f"snapshots/{snapshot_id}/"):
        repo.snapshots.add(snapshot_id)
    return snapshot_id in repo.snapshots


def load(repo: Repository, snapshot_id: Digest) -> Snapshot:
    """Return a published snapshot. Raises NotFound, CorruptObject."""
    if not is_published(repo, snapshot_id):
        raise NotFound(f"no snapshot {snapshot_id}")
    return repo.objects.get_record(snapshot_id, Snapshot)


def annotations(repo: Repository, snapshot_id: Digest) -> list[Annotation]:
    """Return the annotations of a snapshot, oldest first."""
    return list(bindings.records(repo.store, f"snapshots/{snapshot_id}/", Annotation).values())


def ids(repo: Repository) -> list[Digest]:
    """Return the ids of all published snapshots, sorted."""
    return list(repo.store.names("snapshots/"))
