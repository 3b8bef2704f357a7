"""`push` and `pull`: copy a snapshot or a run with all it needs to another store.

Objects first, references last, in the order of docs/format.md. So the target only contains complete snapshots and runs,
whenever a copy is killed, and the same command continues it. Every byte is verified.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from m5ws.errors import CorruptObject, M5Error, NotFound, ObjectExists, UsageError
from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.repository import gc_plans, presence, publishing
from m5ws.repository.concurrency import Job, bounded_map
from m5ws.repository.objects import key
from m5ws.repository.references import run_index, runs
from m5ws.repository.references.ids import Kind
from m5ws.repository.references.run_index import RunFacts
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import closure


class Conflict(M5Error):
    """Two stores have different content under one name."""

    exit_code = 1
    hint = "A run was continued in both stores, and both are unchanged. Start a new run from its snapshot in one store."


class CopyCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a copy; on a dry run, of the copy that would be made. `references` counts new references."""

    snapshots: int
    runs: int
    objects: int
    size_bytes: int
    new_objects: int
    new_bytes: int
    references: int


def copy(
    source: Repository,
    target: Repository,
    wanted: Sequence[tuple[Kind, str]],
    progress: Progress | None = None,
    *,
    dry_run: bool = False,
) -> CopyCounts:
    """Copy snapshots and runs. Raises UsageError for stores of different formats, Conflict, NotFound, CorruptObject.

    Data that a running run publishes meanwhile is left for the next call.
    """
    _refuse_foreign(source, target)
    began = target.objects.begin()
    roots = tuple(dict.fromkeys(closure.roots(source, wanted)))
    references = {name: None for kind, root in roots for name in closure.references(source, kind, root)}
    new = [name for name in references if not _there(source, target, name)]
    needs: dict[Digest, int] = {}
    for position, (kind, root) in enumerate(roots):
        if progress:
            progress("reading records", position, len(roots))
        for digest, size in closure.closure(source, kind, root).items():
            needs[digest] = max(size, needs.get(digest, 0))
    lacking = presence.missing(target.objects, needs)
    if not dry_run:
        copy_objects(source, target, needs, lacking, progress)
        publishing.publish(
            target,
            lambda: {bytes.fromhex(digest) for digest in needs},
            lambda: _publish(source, target, new, [root for kind, root in roots if kind == "run"]),
            patience=gc_plans.RetryPolicy(progress=progress),
            began=began,
            repair=lambda: copy_objects(source, target, needs, presence.missing(target.objects, needs), progress),
        )
    return CopyCounts(
        snapshots=sum(kind == "snapshot" for kind, _ in roots),
        runs=sum(kind == "run" for kind, _ in roots),
        objects=len(needs),
        size_bytes=sum(needs.values()),
        new_objects=len(lacking),
        new_bytes=sum(needs[digest] for digest in lacking),
        references=len(new),
    )


def _refuse_foreign(source: Repository, target: Repository) -> None:
    if source.compatible_format != target.compatible_format:
        raise UsageError(
            f"the stores {source.store.url} and {target.store.url} have different formats: "
            f"{source.compatible_format} and {target.compatible_format}",
            hint="Ids depend on the store's hash and sizes. Name a store of the same format.",
        )
    if source.store.url == target.store.url:
        raise UsageError(f"{source.store.url} is this workspace's own store", hint="Name another store.")


def _there(source: Repository, target: Repository, name: str) -> bool:
    """Return True if the target has a reference. Raises Conflict if it has another reference under that name."""
    try:
        held = target.store.get(name)
    except NotFound:
        return False
    if held != source.store.get(name):
        raise Conflict(f"{name} differs between {source.store.url} and {target.store.url}")
    return True


def copy_objects(
    source: Repository, target: Repository, needs: Mapping[Digest, int], lacking: set[Digest], progress: Progress | None
) -> None:
    """Copy missing objects in the order of `needs`, so that an object follows the objects that it names."""
    total, done = sum(needs[digest] for digest in lacking), 0
    jobs: list[Job[int]] = [
        (size, partial(_copy_object, source, target, digest, size))
        for digest, size in needs.items()
        if digest in lacking
    ]
    for size in bounded_map(jobs):
        done += size
        if progress:
            progress("copying bytes", done, total)


def _copy_object(source: Repository, target: Repository, digest: Digest, least: int) -> int:
    data = source.objects.get(digest)
    if len(data) < least:
        raise CorruptObject(f"object {digest} has {len(data)} bytes, but a record names {least}")
    # Reading has verified the name already.
    with suppress(ObjectExists):
        target.store.create(key(digest), data)
    return len(data)


def _publish(source: Repository, target: Repository, names: Sequence[str], copied: Sequence[str]) -> None:
    """Publish references, and the creation of each copied run in the index, with its time in the source."""
    for name in names:
        try:
            # Published from here on: all objects it names exist.
            publishing.create_once(target, name, source.store.get(name))
        except ObjectExists:
            raise Conflict(f"{name} differs between {source.store.url} and {target.store.url}") from None
    for run in copied:
        if run_index.load(target, run).get(run, RunFacts()).created is None:
            run_index.write_created(target, runs.load(source, run), runs.creation(source, run).created_s)
