"""One capture of a workspace: checks every part, and makes it durable, as it was at one moment.

Files are searched for secrets before they are stored: code and config completely, tokenizers and data by name and, if
small, by content. After the last byte every file is compared with its first state. If one has changed, the capture
fails, and no snapshot refers to the stored objects.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from m5ws.errors import MissingExtra, NotFound
from m5ws.progress import report
from m5ws.records.base import Digest
from m5ws.records.snapshot import Dataset, Tokenizer
from m5ws.repository.files import trees
from m5ws.repository.files.index import Written
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.writer import FileChanged
from m5ws.snapshot import datasets, partition, remote, unintended
from m5ws.snapshot.context import CaptureContext, CaptureResult
from m5ws.snapshot.partition import Partition, PinnedPath
from m5ws.snapshot.sources import pinned_files
from m5ws.snapshot.sources.interface import SourceState

_OWN, _PINNED = "code and config", "pinned by content"
"""Checks of files (`CaptureContext.passed`)."""
_PROBED = "tokenizer"


def store(context: CaptureContext) -> CaptureResult:
    """Make every part durable. Raises FileChanged if anything changed between the first comparison and the last."""
    report(context.progress, "comparing the workspace with its commit")
    state = context.source.state(context.root)
    claims = _claims(context, state)
    tokenizer = _tokenizer_claim(context)
    divided = partition.partition_files(context.root, context.settings, state, tokenizer, claims)
    contents = CaptureResult(state=state, notes=list(state.notes), dirty=divided.dirty)
    context.warn(unintended.warnings(divided.code, state.changed, has_commit=state.commit is not None))
    _store_own(context, divided, contents)
    _store_tokenizer(context, divided.tokenizer, contents)
    contents.remote = tuple(claim.remote for claim in divided.datasets if claim.remote is not None)
    own = [claim for claim in divided.datasets if claim.remote is None]
    contents.datasets = tuple(_dataset(context, claim, contents) for claim in own)
    if not contents.unchanged:
        _look_again(context, contents)
    return contents


# --- parts of the workspace --------------------------------------------------------------------------


def _claims(context: CaptureContext, state: SourceState) -> list[PinnedPath]:
    """Return every dataset with its files. A dataset that contains the tokenizer is needed as files."""
    path = context.settings.tokenizer.path
    tokenizer = partition.tree_path(path) if path is not None else None
    pins = context.datasets.find(context.root, state.files) if context.datasets is not None else ()
    staying = remote.choose(context.settings.data, pins)
    tracked = [
        datasets.locate(context, pin, reuse=tokenizer is None or not (tokenizer + b"/").startswith(pin.path + b"/"))
        for pin in pins
        if pin not in staying
    ]
    tracked += [PinnedPath(path=os.fsencode(each.name), files=(), remote=each) for each in remote.pin(context, staying)]
    own = partition.data_paths(context.settings, pins)
    return [*tracked, *(PinnedPath(path=path, files=_required(context, path)) for path in own)]


def _tokenizer_claim(context: CaptureContext) -> PinnedPath | None:
    name = context.settings.tokenizer.path
    if name is None:
        return None
    path = partition.tree_path(name)
    return PinnedPath(path=path, files=pinned_files.below(context.root, path) or ())


def _required(context: CaptureContext, path: bytes) -> tuple[SourceFile, ...]:
    files = pinned_files.below(context.root, path)
    if files is None:
        raise NotFound(
            f"[data] paths: {os.fsdecode(path)!r} does not exist", hint="Add the data, or correct m5ws.toml."
        )
    return files


# --- each part -----------------------------------------------------------------------------------------


def _store_own(context: CaptureContext, divided: Partition, contents: CaptureResult) -> None:
    """Check code and config, and store them."""
    parts = (divided.code, divided.config)
    if (written := context.passed(_OWN, *parts)) is None:
        from m5ws.snapshot import inspection
        from m5ws.snapshot.config import edit

        own = (*divided.code, *divided.config)
        contents.inspected = inspection.inspect_code(
            context.root, own, context.repo.objects, context.index, context.settings.secrets.allow
        )
        for file in divided.config:
            edit.check(file.path.decode("utf-8", "backslashreplace"), Path(file.location).read_bytes())
        written = tuple(map(context.write, parts))
        context.mark_passed(_OWN, *parts)
    contents.code, contents.config = (contents.add(*pair) for pair in zip(parts, written, strict=True))


def _store_tokenizer(context: CaptureContext, files: tuple[SourceFile, ...] | None, contents: CaptureResult) -> None:
    if files is None:
        return
    tree = contents.add(files, _write_content(context, files))
    text = context.settings.tokenizer.probe
    ids = _token_ids(context, files, tree, text, contents) if text else None
    contents.tokenizer = Tokenizer(tree=tree, probe_text=text or None, probe_ids=ids)


def _token_ids(
    context: CaptureContext, files: Sequence[SourceFile], tree: Digest, text: str, contents: CaptureResult
) -> tuple[int, ...] | None:
    """Return the token ids of the probe text, None without a `tokenizer.json`. The index remembers them.

    Raises MissingExtra without a library: the ids are part of the snapshot, which must not depend on the machine.
    """
    named = [file for file in files if os.path.basename(file.path) == b"tokenizer.json"]
    file = min(named, key=lambda file: (file.path.count(b"/"), file.path), default=None)
    if file is None:
        contents.notes.append("no tokenizer.json exists: the tokenizer's files are pinned without token ids")
        return None
    version = context.probe.version() if context.probe is not None else None
    if context.probe is None or version is None:
        raise MissingExtra("pinning a tokenizer's token ids", "tokenizer", or_else='set [tokenizer] probe = ""')
    key = f"{tree}:{version}:{context.repo.objects.digest(text.encode('utf-8', 'surrogatepass'))}:"
    for mark in context.index.marks(_PROBED):
        if mark.startswith(key):
            return tuple(json.loads(mark.removeprefix(key)))
    ids = context.probe.ids(Path(file.location).read_bytes(), text)
    context.index.remember_marks(_PROBED, {key + json.dumps(ids)})
    return ids


def _write_content(context: CaptureContext, files: Sequence[SourceFile]) -> Written:
    """Check and store files that are pinned by content. A tree that passed before is not read again."""
    if (known := context.passed(_PINNED, files)) is not None:
        return known[0]
    context.inspect(files)
    written = context.write(files)
    context.mark_passed(_PINNED, files)
    return written


def _dataset(context: CaptureContext, claim: PinnedPath, contents: CaptureResult) -> Dataset:
    if claim.stored is not None:
        dataset, files = claim.stored
        contents.files += files
        contents.size_bytes += dataset.size_bytes
        return dataset
    if claim.tracked is not None:
        dataset, written = datasets.write(context, claim)
        contents.add(claim.files, written)
        return dataset
    written = _write_content(context, claim.files)
    contents.add(claim.files, written)
    name = os.fsdecode(claim.path)
    return Dataset(name=name, kind="files", tree=written.digest, size_bytes=written.size_bytes)


# --- the last comparison -----------------------------------------------------------------------------------


def _look_again(context: CaptureContext, contents: CaptureResult) -> None:
    """Raise FileChanged if anything changed since the capture began."""
    if contents.inspected is not None:
        contents.inspected.check()
    if context.source.state(context.root) != contents.state:
        raise FileChanged("files were added, removed or committed while the workspace was captured")
    if context.dry_run:
        return
    for files, digest in contents.stored:
        staged = any(str(file.location).startswith(str(context.staging)) for file in files[:1])
        if staged:
            continue
        if not trees.is_still(context.repo.objects, files, context.index, digest):
            raise FileChanged("files were changed while the workspace was captured")
