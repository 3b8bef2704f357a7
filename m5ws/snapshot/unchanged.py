"""Unchanged code and config: known from one glance at the working tree, without a list of files.

A glance does not cover targets of linked config files, nor the tokenizer and data, so they are compared each time. A
capture is remembered only if source control would show any later change. That is: the glances before and after the
capture are equal, and the code's files have the stamps with which they were read.
"""

import os
from collections.abc import Sequence

import msgspec

from m5ws.config.settings import SEARCH_RULES
from m5ws.errors import NotFound
from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.repository.files import trees
from m5ws.repository.files.index import KnownTree
from m5ws.repository.files.interface import SourceFile
from m5ws.snapshot import partition
from m5ws.snapshot.context import CaptureContext, CaptureResult
from m5ws.snapshot.sources.interface import Glance, SourceState, TrackedDataset

_NOTE = "glance"
_INDEX_TICK_NS = 2_000_000_000
"""git compares whole seconds; the coarsest file system's are two."""


class _CacheEntry(msgspec.Struct, frozen=True, kw_only=True):
    """State of the workspace at the glance and with the settings whose digest is `key`."""

    key: Digest
    state: SourceState
    dirty: bool
    pins: tuple[TrackedDataset, ...]
    code: KnownTree
    config: tuple[tuple[bytes, str], ...]


class CachedCapture(msgspec.Struct, frozen=True, kw_only=True):
    """Stored code and config of an earlier capture, and the state of source control then, without file names."""

    state: SourceState
    dirty: bool
    pins: tuple[TrackedDataset, ...]
    code: trees.Written
    config: trees.Written
    config_files: tuple[SourceFile, ...]


def recall(context: CaptureContext, glance: Glance | None) -> CachedCapture | None:
    """Return the earlier capture of the unchanged workspace if the store has all of it, else None."""
    if glance is None or not (note := context.index.note(_NOTE)):
        return None
    try:
        known = msgspec.msgpack.decode(note, type=_CacheEntry)
    except codec.UNREADABLE:
        return None
    if known.key != _key(context, glance):
        return None
    config = _config(context, known)
    if config is None:
        return None
    written = trees.present(
        context.repo.objects,
        context.repo.locations,
        [known.code, trees.recorded(context.repo.objects, config, context.index)],
    )
    if written is None:
        return None
    code, config_tree = written
    return CachedCapture(
        state=known.state, dirty=known.dirty, pins=known.pins, code=code, config=config_tree, config_files=config
    )


def remember(
    context: CaptureContext,
    contents: CaptureResult,
    divided: partition.Partition,
    glance: Glance,
    pins: Sequence[TrackedDataset],
    began_ns: int,
) -> None:
    """Remember a capture that began at `began_ns` (wall clock) after `glance`, if any later change would show."""
    late = glance.indexed_ns + _INDEX_TICK_NS >= began_ns
    if context.dry_run or late or not contents.state.glanceable or not _covered(context, divided, pins):
        return
    files = [SourceFile(path=file.path, location=file.location) for file in divided.code]
    try:
        code = trees.recorded(context.repo.objects, files, context.index)
    except OSError:
        return
    if code is None or code.digest != contents.code or context.source.glance(context.root)() != glance:
        return
    remembered = _CacheEntry(
        key=_key(context, glance),
        state=msgspec.structs.replace(contents.state, files=(), changed=(), stats={}),
        dirty=contents.dirty,
        pins=tuple(pins),
        code=code,
        config=tuple((file.path, os.fspath(file.location)) for file in divided.config),
    )
    context.index.remember_note(_NOTE, msgspec.msgpack.encode(remembered))


def _covered(context: CaptureContext, divided: partition.Partition, pins: Sequence[TrackedDataset]) -> bool:
    """Return True if no config file and no pin is a link to a file that a glance does not cover."""
    links = any(os.path.islink(os.path.join(context.root, os.fsdecode(pin.pin))) for pin in pins)
    return not links and all(os.fspath(file.location) == _place(context, file.path) for file in divided.config)


def _config(context: CaptureContext, known: _CacheEntry) -> tuple[SourceFile, ...] | None:
    """Return the config files if they are the remembered ones, else None."""
    names = tuple(path for path, _ in known.config)
    try:
        files = partition.config_files(
            context.root, context.settings.config, names, partition.roots(context.settings, known.pins)
        )
    except NotFound:
        return None
    same = tuple((file.path, os.fspath(file.location)) for file in files) == known.config
    return files if same else None


def _place(context: CaptureContext, path: bytes) -> str:
    return os.path.join(context.root, os.fsdecode(path))


def _key(context: CaptureContext, glance: Glance) -> Digest:
    settings = (os.fspath(context.root), SEARCH_RULES, repr(context.settings), context.datasets is not None)
    return context.repo.objects.digest(codec.encode_plain((*settings, glance.outputs)))
