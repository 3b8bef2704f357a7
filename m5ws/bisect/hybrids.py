"""Hybrids: run GOOD with some differences taken from run BAD, as a snapshot and a launch.

A tree of one run is used as stored. Mixed code or config is packed like a snapshot of the same files. Without elements
a hybrid equals GOOD. With all of them it equals BAD, except for differences that cannot alter bits.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from m5ws.bisect.differences import InputDifference
from m5ws.diff import trees as tree_diff
from m5ws.errors import CorruptObject
from m5ws.records.base import Digest
from m5ws.records.run import LaunchSpec, Parent, Run
from m5ws.records.snapshot import Annotation, Code, Dataset, RemoteDataset, Snapshot
from m5ws.records.tree import Entry
from m5ws.repository.files import trees
from m5ws.repository.files.validation import check_paths
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot.config import merge
from m5ws.snapshot.config.merge import MergeConflict

D = TypeVar("D", Dataset, RemoteDataset)


class Hybrid(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs and the launch of a hybrid."""

    snapshot: Snapshot
    spec: LaunchSpec
    parent: Parent | None


def make(
    repo: Repository, good: Run, bad: Run, elements: Sequence[InputDifference], chosen: Collection[InputDifference]
) -> Hybrid:
    """Return `good` with `chosen` of all `elements` from `bad`. Its trees are durable, its snapshot unpublished.

    Raises MergeConflict if the mixture would have one path twice, or as a file and as a folder.
    """
    old, new = snapshots.load(repo, good.snapshot), snapshots.load(repo, bad.snapshot)
    parts = {element.change.part for element in chosen}
    determinism, spec, parent = old.determinism, good.spec, good.parent
    for element in chosen:
        part, name = element.change.part, element.change.name
        if part == "determinism":
            determinism = msgspec.structs.replace(determinism, **{name: getattr(new.determinism, name)})
        elif (part, name) == ("launch", "from.restart") and parent is not None and bad.parent is not None:
            parent = msgspec.structs.replace(parent, restart=bad.parent.restart)
        elif part == "launch":
            spec = msgspec.structs.replace(spec, **_launched(spec, bad.spec, name))
    data = {element.change.name for element in chosen if element.change.part == "data"}
    snapshot = Snapshot(
        code=_code(repo, old.code, new.code, elements, chosen),
        config=_config(repo, old.config, new.config, elements, chosen),
        tokenizer=new.tokenizer if "tokenizer" in parts else old.tokenizer,
        datasets=_mixed(old.datasets, new.datasets, data),
        declared=old.declared,
        determinism=determinism,
        remote=_mixed(old.remote, new.remote, data),
    )
    _check(snapshots.entries(repo, snapshot))
    if parent is not None and (snapshot != old or spec != good.spec or parent != good.parent):
        # A fork made with these changes would use them, so the hybrid does too.
        parent = msgspec.structs.replace(parent, settings="script")
    return Hybrid(snapshot=snapshot, spec=spec, parent=parent)


def _mixed(old: Sequence[D], new: Sequence[D], names: Collection[str]) -> tuple[D, ...]:
    """Return the datasets of one run, with the datasets of `names` from the other run."""
    mixed: list[D] = [each for each in old if each.name not in names]
    mixed += [each for each in new if each.name in names]
    return tuple(sorted(mixed, key=lambda dataset: dataset.name))


def publish(repo: Repository, hybrid: Hybrid, good: Run, bad: Run, what: str) -> Digest:
    """Publish a hybrid's snapshot, if it is new, and return its id. Raises ObjectDeleted if gc deleted a part of it."""
    digest = repo.objects.put_record(hybrid.snapshot)
    if repo.store.names(f"snapshots/{digest}/"):
        return digest
    message = f"bisect: run {good.id} with {what or 'nothing'} from run {bad.id}"
    annotation = Annotation(created_s=time.time(), message=message, derived_from=good.snapshot)
    # Published from here on: the trees are durable, and so is everything that they name.
    return snapshots.publish(repo, hybrid.snapshot, annotation)


def _launched(spec: LaunchSpec, bad: LaunchSpec, name: str) -> dict[str, Any]:
    """Return the field of a launch spec to replace, with its value from `other`."""
    variable = name.removeprefix("environment.")
    if name == "nproc":
        return {"nproc": bad.nproc, "trainer": bad.trainer}
    if variable == name:
        return {name: getattr(bad, name)}
    environment = {key: value for key, value in spec.environment.items() if key != variable}
    return {"environment": environment | {k: v for k, v in bad.environment.items() if k == variable}}


def _code(
    repo: Repository, old: Code, new: Code, elements: Sequence[InputDifference], chosen: Collection[InputDifference]
) -> Code:
    files = {element.file for element in elements if element.change.part == "code"}
    taken = {element.file for element in chosen if element.change.part == "code"}
    if not taken:
        return old
    if taken == files:
        return new
    mixed = {pair.path: pair.new for pair in tree_diff.different(repo, old.tree, new.tree) if pair.path in taken}
    entries: dict[bytes, Entry | None] = {entry.path: entry for entry in trees.load(repo.objects, old.tree).entries}
    return Code(commit=old.commit, dirty=True, tree=_packed(repo, entries | mixed, {}, (old.tree, new.tree)))


def _config(
    repo: Repository, old: Digest, new: Digest, elements: Sequence[InputDifference], chosen: Collection[InputDifference]
) -> Digest:
    keys = [element for element in elements if element.change.part == "config"]
    taken = [element for element in chosen if element.change.part == "config"]
    if len(taken) in (0, len(keys)):
        return new if taken else old
    entries: dict[bytes, Entry | None] = {entry.path: entry for entry in trees.load(repo.objects, old).entries}
    texts: dict[bytes, bytes] = {}
    for pair in tree_diff.different(repo, old, new):
        some = [element.keys for element in taken if element.file == pair.path]
        if len(some) == len([element for element in keys if element.file == pair.path]):
            entries[pair.path] = pair.new
        elif some and pair.old is not None and pair.new is not None:
            before, after = (trees.read_file(repo.objects, side) for side in (pair.old, pair.new))
            texts[pair.path] = merge.merged(pair.name, before, after, some)
    return _packed(repo, entries, texts, (old, new))


def _packed(
    repo: Repository,
    entries: Mapping[bytes, Entry | None],
    texts: Mapping[bytes, bytes],
    sources: tuple[Digest, Digest],
) -> Digest:
    """Make a tree of entries of two trees durable, some with new content."""
    kept = [entry for _, entry in sorted(entries.items()) if entry is not None]
    _check(kept)
    packs = [pack for source in sources for pack in trees.load(repo.objects, source).packs]
    return trees.rewrite_tree(repo.objects, kept, texts, packs)


def _check(files: Sequence[Entry]) -> None:
    try:
        check_paths(files, "of both runs")
    except CorruptObject as error:
        raise MergeConflict(str(error)) from error
