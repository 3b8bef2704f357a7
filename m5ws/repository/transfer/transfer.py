"""`push` and `pull`: copy a snapshot or a run with all it needs to another store.

Objects first, references last, in the order of docs/format.md. So the target only contains complete snapshots and runs,
whenever a copy is killed, and the same command continues it. Every byte is verified.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from m5ws.errors import CorruptObject, M5Error, NotFound, ObjectExists, UsageError
from m5ws.progress import Progress, report
from m5ws.records.base import Digest
from m5ws.repository import gc_plans, presence, publishing, removals
from m5ws.repository.concurrency import Job, bounded_map
from m5ws.repository.objects import key
from m5ws.repository.references.ids import Kind
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import closure


class Conflict(M5Error):
    """Two stores have different content under one name."""

    exit_code = 1
    hint = "A run was continued in both stores, and both are unchanged. Start a new run from its snapshot in one store."


class CopyCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a copy; on a dry run, of the copy that would be made. `references` counts new references.

    `left_out` has runs that are removed in one of the stores alone, and runs that need these.
    """

    snapshots: int
    runs: int
    objects: int
    size_bytes: int
    new_objects: int
    new_bytes: int
    references: int
    left_out: tuple[str, ...] = ()


def copy(
    source: Repository,
    target: Repository,
    wanted: Sequence[tuple[Kind, str]],
    progress: Progress | None = None,
    *,
    dry_run: bool = False,
    leave_out: bool = False,
) -> CopyCounts:
    """Copy snapshots and runs. Raises UsageError for stores of different formats, Conflict, NotFound, CorruptObject.

    Data that a running run publishes meanwhile is left for the next call. The removal of a run is copied before the
    run, and a removal that is published meanwhile at the end. A run that is removed in one of the stores alone is a
    conflict. With `leave_out`, it is left out with all runs that need it.
    """
    _refuse_foreign(source, target)
    began = target.objects.begin()
    needed = {each: closure.roots(source, [each]) for each in wanted}
    existing = frozenset(target.store.names("runs/"))
    named = dict.fromkeys(name for some in needed.values() for kind, name in some if kind == "run")
    carried, apart = _compare_removals(source, target, named, existing)
    if not leave_out:
        _refuse_apart(source, target, apart)
    left_out = {each for each, some in needed.items() if any(name in apart for _, name in some)}
    roots = tuple(dict.fromkeys(root for each, some in needed.items() if each not in left_out for root in some))
    runs = [root for kind, root in roots if kind == "run"]
    references = {name: None for kind, root in roots for name in closure.references(source, kind, root)}
    new = [name for name in references if not _there(source, target, name)]
    # First, so that an interrupted copy leaves no run without its removal.
    new = [*(removals.key(name) for name in runs if name in carried), *new]
    needs = _find_needs(source, roots, progress)
    lacking = presence.missing(target.objects, needs)
    if not dry_run:
        try:
            copy_objects(source, target, needs, lacking, progress)
            publishing.publish(
                target,
                lambda: {bytes.fromhex(digest) for digest in needs},
                lambda: _publish(source, target, new),
                run=None,
                patience=gc_plans.RetryPolicy(progress=progress),
                began=began,
                repair=lambda: copy_objects(source, target, needs, presence.missing(target.objects, needs), progress),
            )
        except (M5Error, OSError):
            # A run that is removed meanwhile may have lost objects in both stores.
            _copy_removals(source, target, runs, existing)
            raise
        apart = _copy_removals(source, target, runs, existing)
        _refuse_apart(source, target, apart)
    return CopyCounts(
        snapshots=sum(kind == "snapshot" for kind, _ in roots),
        runs=sum(kind == "run" for kind, _ in roots),
        objects=len(needs),
        size_bytes=sum(needs.values()),
        new_objects=len(lacking),
        new_bytes=sum(needs[digest] for digest in lacking),
        references=len(new),
        left_out=tuple(name for _, name in left_out),
    )


def _find_needs(source: Repository, roots: Sequence[tuple[Kind, str]], progress: Progress | None) -> dict[Digest, int]:
    """Return the objects of snapshots and runs, with the bytes that their references need of each."""
    needs: dict[Digest, int] = {}
    for position, (kind, root) in enumerate(roots):
        report(progress, "reading records", position, len(roots))
        for digest, size in closure.closure(source, kind, root).items():
            needs[digest] = max(size, needs.get(digest, 0))
    return needs


def _refuse_foreign(source: Repository, target: Repository) -> None:
    if source.compatible_format != target.compatible_format:
        raise UsageError(
            f"the stores {source.store.url} and {target.store.url} have different formats: "
            f"{source.compatible_format} and {target.compatible_format}",
            hint="Ids depend on the store's hash and sizes. Name a store of the same format.",
        )
    if source.store.url == target.store.url:
        raise UsageError(f"{source.store.url} is this workspace's own store", hint="Name another store.")


def _compare_removals(
    source: Repository, target: Repository, names: Iterable[str], existing: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return the runs whose removals are to be copied, and the runs that are removed in one of the stores alone.

    `existing` has the runs that the target had before this copy: a copy does not remove them.
    """
    here, there = removals.removed_runs(source), removals.removed_runs(target)
    apart = [name for name in names if name in there - here or (name in here - there and name in existing)]
    return [name for name in names if name in here - there and name not in apart], apart


def _copy_removals(
    source: Repository, target: Repository, names: Sequence[str], existing: Collection[str]
) -> list[str]:
    """Copy removals that were published meanwhile. Return the runs that are removed in one of the stores alone."""
    carried, apart = _compare_removals(source, target, names, existing)
    _publish(source, target, [removals.key(name) for name in carried])
    return apart


def _refuse_apart(source: Repository, target: Repository, apart: Sequence[str]) -> None:
    if apart:
        raise Conflict(
            f"run {apart[0]} is removed in one of the stores {source.store.url} and {target.store.url} alone",
            hint="`m5ws rm` in the workspace of the other store removes the run there too.",
        )


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
        report(progress, "copying bytes", done, total)


def _copy_object(source: Repository, target: Repository, digest: Digest, least: int) -> int:
    data = source.objects.get(digest)
    if len(data) < least:
        raise CorruptObject(f"object {digest} has {len(data)} bytes, but a record names {least}")
    # Reading has verified the name already.
    with suppress(ObjectExists):
        target.store.create(key(digest), data)
    return len(data)


def _publish(source: Repository, target: Repository, names: Sequence[str]) -> None:
    for name in names:
        try:
            # Published from here on: all objects it names exist.
            publishing.create_once(target, name, source.store.get(name))
        except ObjectExists:
            raise Conflict(f"{name} differs between {source.store.url} and {target.store.url}") from None
