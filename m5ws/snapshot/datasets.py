"""Makes DVC's datasets durable: every byte is checked against DVC's hash, and pinned by a digest of m5ws.

Files in the working tree are used if they match the pin. Missing ones are fetched, unless the store has them from an
earlier snapshot. The tree does not depend on the source, because the pin has the mode of the files.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from m5ws.errors import CorruptObject, M5Error, UnknownSchema
from m5ws.filesystem import stamp
from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.records.snapshot import Dataset
from m5ws.records.tree import Tree
from m5ws.repository import concurrency, snapshots
from m5ws.repository.files import trees
from m5ws.repository.files.index import Index
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.writer import FileChanged
from m5ws.repository.repository import Repository
from m5ws.snapshot.partition import PinnedPath
from m5ws.snapshot.sources import pinned_files
from m5ws.snapshot.sources.interface import DatasetSource, TrackedDataset

_MARK = "dvc"


class DatasetLocations(msgspec.Struct, frozen=True, kw_only=True):
    """Sources and destination of datasets. `staging` is a folder for fetched files.

    `inspect` raises for files that must not be captured. `allowed` is the digest of its rules and exemptions.
    """

    root: Path
    repo: Repository
    source: DatasetSource
    index: Index
    staging: Path
    dry_run: bool
    progress: Progress | None
    allowed: Digest
    inspect: Callable[[Sequence[SourceFile]], None]


class ReusedDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset that the store has completely, from an earlier snapshot."""

    tracked: TrackedDataset
    dataset: Dataset
    files: int


def locate(place: DatasetLocations, tracked: TrackedDataset, *, reuse: bool) -> PinnedPath | ReusedDataset:
    """Return the dataset's files, from the working tree or fetched; with `reuse`, the stored dataset if it exists."""
    files = pinned_files.below(place.root, tracked.path) or ()
    chosen = place.source.select(place.root, tracked, files)
    if chosen and not any(os.path.islink(file.location) for file in chosen):
        return PinnedPath(path=tracked.path, files=chosen, tracked=tracked)
    if reuse and (kept := _kept(place, tracked)) is not None:
        return kept
    target = place.staging / place.repo.objects.digest(tracked.path + tracked.hash.encode())
    fetched = place.source.fetch(place.root, tracked, target) if not target.exists() else _staged(target, tracked)
    return PinnedPath(path=tracked.path, files=fetched, tracked=tracked)


def write(place: DatasetLocations, claim: PinnedPath, verified: Sequence[SourceFile]) -> tuple[Dataset, trees.Written]:
    """Make a tracked dataset durable. `verified` are all its files; `claim` lacks those of the tokenizer.

    Raises M5Error if the working tree differs from the pin, or contains files that must not be captured.
    """
    tracked = claim.tracked
    assert tracked is not None
    staged = any(str(file.location).startswith(str(place.staging)) for file in claim.files)
    index = None if staged else place.index
    whole = len(verified) == len(claim.files)
    if index is not None and whole and (known := _known(place, tracked, claim.files)) is not None:
        return known
    place.source.verify(tracked, verified)
    place.inspect(claim.files)
    before = [os.lstat(file.location) for file in verified]
    written = trees.write_tree(
        place.repo.objects, place.repo.locations, claim.files, index, place.progress, place.dry_run
    )
    after = [os.lstat(file.location) for file in verified]
    _unmoved(tracked, before, after)
    if place.dry_run:
        return _dataset(tracked, written.digest, written.size_bytes), written
    tree = _with_mode(place.repo, written.digest, written.packing, tracked)
    if whole:
        _remember(place, tracked, written.digest, tree)
    return _dataset(tracked, tree, written.size_bytes), written


def _unmoved(tracked: TrackedDataset, before: list[os.stat_result], after: list[os.stat_result]) -> None:
    if [*map(stamp, before)] != [*map(stamp, after)]:
        raise FileChanged(f"{os.fsdecode(tracked.path)} was changed while it was captured")


def _dataset(tracked: TrackedDataset, tree: Digest, size_bytes: int) -> Dataset:
    return Dataset(name=os.fsdecode(tracked.path), kind="dvc", tree=tree, size_bytes=size_bytes, hash=tracked.hash)


def _staged(target: Path, tracked: TrackedDataset) -> tuple[SourceFile, ...]:
    return pinned_files.below(target, tracked.path) or ()


def _known(
    place: DatasetLocations, tracked: TrackedDataset, files: Sequence[SourceFile]
) -> tuple[Dataset, trees.Written] | None:
    """Return the dataset if these files were checked before and have not changed. Costs a stat per file."""
    marks = [mark for mark in place.index.marks(_MARK) if mark.startswith(f"{_name(place, tracked)}:")]
    if not marks:
        return None
    probe = trees.write_tree(place.repo.objects, place.repo.locations, files, place.index, None, dry_run=True)
    for mark in marks:
        _, seen, tree = mark.rsplit(":", 2)
        if probe.unchanged and seen == probe.digest and place.repo.objects.has(tree):
            place.repo.locations.add_tree(tree, probe.packing)
            return _dataset(tracked, tree, probe.size_bytes), probe
    return None


def _remember(place: DatasetLocations, tracked: TrackedDataset, seen: Digest, tree: Digest) -> None:
    marks = {mark for mark in place.index.marks(_MARK) if not mark.startswith(f"{_name(place, tracked)}:")}
    place.index.remember_marks(_MARK, marks | {f"{_name(place, tracked)}:{seen}:{tree}"})


def _name(place: DatasetLocations, tracked: TrackedDataset) -> str:
    return f"{tracked.path.hex()}:{place.allowed}:{tracked.hash}:{int(tracked.executable)}"


def _with_mode(repo: Repository, digest: Digest, packing: Digest | None, tracked: TrackedDataset) -> Digest:
    """Return the tree with the mode in the pin: the mode on disk depends on how DVC links its cache."""
    tree = trees.load(repo.objects, digest)
    mode = "exec" if tracked.executable else "file"
    if all(entry.mode == mode for entry in tree.entries):
        return digest
    entries = tuple(msgspec.structs.replace(entry, mode=mode) for entry in tree.entries)
    changed = repo.objects.put_record(Tree(entries=entries))
    repo.locations.add_tree(changed, packing)
    return changed


def _kept(place: DatasetLocations, tracked: TrackedDataset) -> ReusedDataset | None:
    """Return the dataset of a published snapshot if the store has all of its objects, else None."""
    wanted = ("dvc", os.fsdecode(tracked.path), tracked.hash)
    for snapshot in concurrency.for_each(partial(snapshots.load, place.repo), snapshots.ids(place.repo)):
        for dataset in snapshot.datasets:
            if (dataset.kind, dataset.name, dataset.hash) != wanted:
                continue
            if (files := _whole(place.repo, dataset.tree)) is not None:
                return ReusedDataset(tracked=tracked, dataset=dataset, files=files)
    return None


def _whole(repo: Repository, digest: Digest) -> int | None:
    """Return the number of files in a tree, None if objects of it are missing or files cannot be located.

    Raises CorruptObject, UnknownSchema.
    """
    try:
        tree = trees.located(repo.objects, repo.locations, digest)
    except (CorruptObject, UnknownSchema):
        raise
    except (M5Error, OSError):
        return None
    needed = {part.object for entry in tree.entries for part in entry.parts}
    return len(tree.entries) if all(map(repo.objects.has, needed)) else None
