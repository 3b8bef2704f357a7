"""Makes DVC's datasets durable: every byte is checked against DVC's hash, and pinned by a digest of m5ws.

Files in the working tree are used if they match the pin. Missing files are fetched, unless the store has them from an
earlier snapshot. The tree does not depend on the source, because the pin has the mode of the files.
"""

import os
from collections.abc import Sequence
from functools import partial

import msgspec

from m5ws.errors import CorruptObject, M5Error, UnknownSchema
from m5ws.filesystem import stamp
from m5ws.records.base import Digest
from m5ws.records.snapshot import Dataset
from m5ws.repository import concurrency
from m5ws.repository.files import trees
from m5ws.repository.files.index import Written
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.writer import FileChanged
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot.context import CaptureContext
from m5ws.snapshot.partition import PinnedPath
from m5ws.snapshot.sources import pinned_files
from m5ws.snapshot.sources.interface import TrackedDataset


def locate(context: CaptureContext, tracked: TrackedDataset, *, reuse: bool) -> PinnedPath:
    """Return the dataset's files, from the working tree or fetched; with `reuse`, the stored dataset if it exists."""
    assert context.datasets is not None
    files = pinned_files.below(context.root, tracked.path) or ()
    if files and not any(os.path.islink(file.location) for file in files):
        return PinnedPath(path=tracked.path, files=files, tracked=tracked, verified=files)
    if reuse and (stored := _find_stored(context, tracked)) is not None:
        return PinnedPath(path=tracked.path, files=(), tracked=tracked, stored=stored)
    target = context.staging / context.repo.objects.digest(tracked.path + tracked.hash.encode())
    if target.exists():
        fetched = pinned_files.below(target, tracked.path) or ()
    else:
        fetched = context.datasets.fetch(context.root, tracked, target)
    return PinnedPath(path=tracked.path, files=fetched, tracked=tracked, verified=fetched)


def write(context: CaptureContext, claim: PinnedPath) -> tuple[Dataset, Written]:
    """Make a tracked dataset durable.

    Raises M5Error if the working tree differs from the pin, or contains files that must not be captured.
    """
    tracked = claim.tracked
    assert tracked is not None
    known = context.passed(tracked.hash, claim.files) if len(claim.verified) == len(claim.files) else None
    written = known[0] if known is not None else _write_verified(context, tracked, claim.files, claim.verified)
    tree = written.digest if context.dry_run else _with_mode(context.repo, written.digest, tracked)
    name = os.fsdecode(tracked.path)
    return Dataset(name=name, kind="dvc", tree=tree, size_bytes=written.size_bytes, hash=tracked.hash), written


def _write_verified(
    context: CaptureContext, tracked: TrackedDataset, files: Sequence[SourceFile], verified: Sequence[SourceFile]
) -> Written:
    """Store files of a dataset, after a comparison of all its files with the pin."""
    assert context.datasets is not None
    context.datasets.verify(tracked, verified)
    context.inspect(files)
    before = [os.lstat(file.location) for file in verified]
    staged = any(str(file.location).startswith(str(context.staging)) for file in files)
    index = None if staged else context.index
    written = trees.write_tree(context.repo.objects, files, index, context.progress, context.dry_run)
    after = [os.lstat(file.location) for file in verified]
    if [*map(stamp, before)] != [*map(stamp, after)]:
        raise FileChanged(f"{os.fsdecode(tracked.path)} was changed while it was captured")
    if len(verified) == len(files):
        context.mark_passed(tracked.hash, files)
    return written


def _with_mode(repo: Repository, digest: Digest, tracked: TrackedDataset) -> Digest:
    """Return the tree with the mode in the pin: the mode on disk depends on how DVC links its cache."""
    tree = trees.load(repo.objects, digest)
    mode = "exec" if tracked.executable else "file"
    if all(entry.mode == mode for entry in tree.entries):
        return digest
    entries = [msgspec.structs.replace(entry, mode=mode) for entry in tree.entries]
    return trees.rewrite_tree(repo.objects, entries, {}, tree.packs)


def _find_stored(context: CaptureContext, tracked: TrackedDataset) -> tuple[Dataset, int] | None:
    """Return the dataset of a published snapshot if the store has all of its objects, with its number of files."""
    wanted = ("dvc", os.fsdecode(tracked.path), tracked.hash)
    for snapshot in concurrency.for_each(partial(snapshots.load, context.repo), snapshots.ids(context.repo)):
        for dataset in snapshot.datasets:
            if (dataset.kind, dataset.name, dataset.hash) != wanted:
                continue
            if (files := _whole(context.repo, dataset.tree)) is not None:
                return dataset, files
    return None


def _whole(repo: Repository, digest: Digest) -> int | None:
    """Return the number of files in a tree, None if objects of it are missing or files cannot be located.

    Raises CorruptObject, UnknownSchema.
    """
    try:
        tree = trees.load(repo.objects, digest)
    except (CorruptObject, UnknownSchema):
        raise
    except (M5Error, OSError):
        return None
    needed = {part.object for entry in tree.entries for part in entry.parts}
    return len(tree.entries) if all(map(repo.objects.has, needed)) else None
