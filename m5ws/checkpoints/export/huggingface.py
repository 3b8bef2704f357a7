"""Files beside a model's weights for Hugging Face's libraries: configuration and tokenizer, from the snapshot."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from m5ws.errors import NotFound
from m5ws.records.base import Digest
from m5ws.records.snapshot import Snapshot
from m5ws.records.tree import Entry
from m5ws.repository.files import trees
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository

_CONFIGS = ("config.json", "generation_config.json")
_MARKS = ("model_type", "architectures")
"""Keys that a model's config.json has, and another file of that name has not."""


def find(repo: Repository, snapshot: Digest) -> tuple[dict[str, Entry], list[str]]:
    """Return files of a snapshot by their exported names, and a list of missing files. Raises CorruptObject."""
    try:
        record = snapshots.load(repo, snapshot)
    except NotFound:
        return {}, ["config.json and tokenizer files: the run's snapshot is not in this store"]
    files = dict(_tokenizer(repo, record))
    missing = [] if files else ["tokenizer files: the snapshot has no tokenizer"]
    for name in _CONFIGS:
        entry = _shallowest(repo, record, name)
        if entry is not None:
            files[name] = entry
        elif name == _CONFIGS[0]:
            missing.append("config.json: the snapshot has none with model_type or architectures")
    return files, missing


def _tokenizer(repo: Repository, record: Snapshot) -> Iterator[tuple[str, Entry]]:
    if record.tokenizer is None:
        return
    files = {
        entry.path: entry for entry in trees.load(repo.objects, record.tokenizer.tree).entries if entry.link is None
    }
    # Paths are relative to the workspace: their common prefix is the tokenizer's folder.
    folder = os.path.commonpath([os.path.dirname(path) for path in files]) if files else b""
    for path, entry in files.items():
        yield os.fsdecode(os.path.relpath(path, folder or b".")), entry


def _shallowest(repo: Repository, record: Snapshot, name: str) -> Entry | None:
    """Return the model's file of that name with the shortest path, None if there is no such path, or a second path as
    short.
    """
    entries: Mapping[bytes, Entry] = {
        entry.path: entry
        for part, tree in record.trees.items()
        if not part.startswith("data:")
        for entry in trees.load(repo.objects, tree).entries
        if os.path.basename(entry.path) == name.encode() and entry.link is None
    }
    wanted = sorted((len(PurePosixPath(entry.name).parts), path) for path, entry in entries.items())
    fitting = [(depth, path) for depth, path in wanted if name != _CONFIGS[0] or _is_model(repo, entries[path])]
    alone = fitting and (len(fitting) == 1 or fitting[0][0] < fitting[1][0])
    return entries[fitting[0][1]] if alone else None


def _is_model(repo: Repository, entry: Entry) -> bool:
    try:
        document = json.loads(trees.read_file(repo.objects, entry))
    except ValueError:
        return False
    return isinstance(document, dict) and any(mark in document for mark in _MARKS)
