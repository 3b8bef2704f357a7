"""One look at a workspace: every part of it checked and made durable, as it was at one moment.

Nothing is stored before it is checked for secrets: code and config whole, tokenizers and data by name and where a file
is small. After the last byte everything is looked at again; if anything moved meanwhile, what
was stored belongs to no snapshot and the look does not count.
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from m5ws.config.settings import SEARCH_RULES
from m5ws.errors import MissingExtra, NotFound
from m5ws.records.base import Digest
from m5ws.records.snapshot import Dataset, Tokenizer
from m5ws.repository.files import trees
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.writer import FileChanged
from m5ws.snapshot import datasets, partition, unchanged
from m5ws.snapshot.context import Contents, Look
from m5ws.snapshot.partition import Claim, Parts
from m5ws.snapshot.sources import pinned_files
from m5ws.snapshot.sources.interface import SourceState, TrackedDataset

_CHECKED, _INSPECTED = "checked", "inspected"
_PROBED = "tokenizer"


def store(look: Look) -> Contents:
    """Make every part durable. Raises FileChanged if anything moved between the first look and the last."""
    began_ns = time.time_ns()
    glance = look.source.glance(look.root)()
    kept = unchanged.recall(look, glance)
    state = look.source.state(look.root) if kept is None else kept.state
    pins = _pins(look, state) if kept is None else kept.pins
    located = _located(look, pins)
    claims = _claims(look, located)
    tokenizer = _tokenizer_claim(look)
    contents = Contents(state=state, notes=list(state.notes))
    if kept is None:
        divided = partition.divide(look.root, look.settings, state, tokenizer, claims)
        contents.dirty = divided.dirty
        _store_own(look, divided, contents)
        files, left = divided.tokenizer, divided.datasets
    else:
        contents.glance, contents.dirty = glance, kept.dirty
        contents.code, contents.config = contents.add((), kept.code), contents.add(kept.config_files, kept.config)
        files, left = partition.pinned(tokenizer, claims)
    _store_tokenizer(look, files, contents)
    stored = {found.tracked.path: found for found in located if isinstance(found, datasets.Kept)}
    whole = {found.path: found.files for found in located if isinstance(found, Claim)}
    contents.datasets = tuple(_dataset(look, claim, stored, whole, contents) for claim in left)
    if not contents.unchanged:
        _look_again(look, contents)
    if kept is None and glance is not None:
        unchanged.remember(look, contents, divided, glance, pins, began_ns)
    return contents


# --- what there is -----------------------------------------------------------------------------------


def _pins(look: Look, state: SourceState) -> tuple[TrackedDataset, ...]:
    return look.datasets.find(look.root, state.files) if look.datasets is not None else ()


def _located(look: Look, pins: Sequence[TrackedDataset]) -> list[Claim | datasets.Kept]:
    """Return every tracked dataset with its files. One that holds the tokenizer is needed as files."""
    path = look.settings.tokenizer.path
    tokenizer = partition.tree_path(path) if path is not None else None
    return [
        datasets.locate(_place(look), pin, reuse=tokenizer is None or not _holds(pin.path, tokenizer)) for pin in pins
    ]


def _holds(folder: bytes, path: bytes) -> bool:
    return path == folder or path.startswith(folder + b"/")


def _place(look: Look) -> datasets.Place:
    assert look.datasets is not None
    return datasets.Place(
        root=look.root,
        repo=look.repo,
        source=look.datasets,
        index=look.index,
        staging=look.staging,
        dry_run=look.dry_run,
        progress=look.progress,
        allowed=_allowed(look),
        inspect=lambda files: _inspect(look, files),
    )


def _allowed(look: Look) -> Digest:
    """Return a digest that changes with the rules for secrets and with the files that are exempt from them."""
    return look.repo.objects.digest(f"{SEARCH_RULES} {look.settings.secrets!r}".encode())


def _inspect(look: Look, files: Sequence[SourceFile]) -> None:
    from m5ws.snapshot import inspection

    inspection.inspect_content(files, look.settings.secrets.allow)


def _claims(look: Look, located: Sequence[Claim | datasets.Kept]) -> list[Claim]:
    """Return every dataset, those of tracked ones that the store has already without files."""
    tracked = [
        found if isinstance(found, Claim) else Claim(path=found.tracked.path, files=(), tracked=found.tracked)
        for found in located
    ]
    pins = [claim.tracked for claim in tracked if claim.tracked is not None]
    own = [Claim(path=path, files=_required(look, path)) for path in partition.data_paths(look.settings, pins)]
    return [*tracked, *own]


def _tokenizer_claim(look: Look) -> Claim | None:
    name = look.settings.tokenizer.path
    if name is None:
        return None
    path = partition.tree_path(name)
    return Claim(path=path, files=pinned_files.below(look.root, path) or ())


def _required(look: Look, path: bytes) -> tuple[SourceFile, ...]:
    files = pinned_files.below(look.root, path)
    if files is None:
        raise NotFound(
            f"[data] paths: there is nothing at {os.fsdecode(path)!r}", hint="Bring the data, or correct m5ws.toml."
        )
    return files


# --- each part -----------------------------------------------------------------------------------------


def _store_own(look: Look, divided: Parts, contents: Contents) -> None:
    """Store what people write, code and config, once it is checked."""
    allowed = _allowed(look)
    if (known := _checked(look, divided, allowed)) is None:
        from m5ws.snapshot import inspection
        from m5ws.snapshot.config import edit

        own = (*divided.code, *divided.config)
        contents.inspected = inspection.inspect_code(
            look.root, own, look.repo.objects, look.index, look.settings.secrets.allow
        )
        for file in divided.config:
            edit.check(file.path.decode("utf-8", "backslashreplace"), Path(file.location).read_bytes())
        known = (look.write(divided.code), look.write(divided.config))
        look.index.remember_marks(_CHECKED, {f"{allowed}:{known[0].digest}:{known[1].digest}"})
    contents.code = contents.add(divided.code, known[0])
    contents.config = contents.add(divided.config, known[1])


def _checked(look: Look, divided: Parts, allowed: Digest) -> tuple[trees.Written, trees.Written] | None:
    """Return code and config as they were written, if these very files were checked and written before."""
    if not look.index.marks(_CHECKED):
        return None
    known = look.known(divided.code, divided.config)
    if known is None:
        return None
    code, config = known
    mark = f"{allowed}:{code.digest}:{config.digest}"
    return (code, config) if mark in look.index.marks(_CHECKED) else None


def _store_tokenizer(look: Look, files: tuple[SourceFile, ...] | None, contents: Contents) -> None:
    if files is None:
        return
    tree = contents.add(files, _write_content(look, b"", files))
    text = look.settings.tokenizer.probe
    ids = _token_ids(look, files, tree, text, contents) if text else None
    contents.tokenizer = Tokenizer(tree=tree, probe_text=text or None, probe_ids=ids)


def _token_ids(
    look: Look, files: Sequence[SourceFile], tree: Digest, text: str, contents: Contents
) -> tuple[int, ...] | None:
    """Return the ids of the probe text, remembered for this tree, text and library; None if no file can be asked.

    Raises MissingExtra without a library: the ids are part of the snapshot, which must not depend on the machine.
    """
    file = min((f for f in files if os.path.basename(f.path) == b"tokenizer.json"), key=_depth, default=None)
    if file is None:
        contents.notes.append("there is no tokenizer.json to ask: the files are pinned, no token ids are")
        return None
    version = look.probe.version() if look.probe is not None else None
    if look.probe is None or version is None:
        raise MissingExtra("pinning a tokenizer's token ids", "tokenizer", or_else='set [tokenizer] probe = ""')
    asked = f"{tree}:{version}:{look.repo.objects.digest(text.encode('utf-8', 'surrogatepass'))}:"
    for mark in look.index.marks(_PROBED):
        if mark.startswith(asked):
            return tuple(json.loads(mark.removeprefix(asked)))
    ids = look.probe.ids(Path(file.location).read_bytes(), text)
    look.index.remember_marks(_PROBED, {asked + json.dumps(ids)})
    return ids


def _write_content(look: Look, path: bytes, files: Sequence[SourceFile]) -> trees.Written:
    """Store what is pinned by content under `path`, once it is checked. A tree that passed before does so again."""
    name = f"{path.hex()}:"
    marks = look.index.marks(_INSPECTED)
    known = look.known(files) if any(mark.startswith(name) for mark in marks) else None
    if known is not None and f"{name}{_allowed(look)}:{known[0].digest}" in marks:
        return known[0]
    _inspect(look, files)
    written = look.write(files)
    others = {mark for mark in marks if not mark.startswith(name)}
    look.index.remember_marks(_INSPECTED, others | {f"{name}{_allowed(look)}:{written.digest}"})
    return written


def _depth(file: SourceFile) -> tuple[int, bytes]:
    return file.path.count(b"/"), file.path


def _dataset(
    look: Look,
    claim: Claim,
    kept: dict[bytes, datasets.Kept],
    whole: dict[bytes, tuple[SourceFile, ...]],
    contents: Contents,
) -> Dataset:
    if claim.path in kept:
        found = kept[claim.path]
        contents.files += found.files
        contents.size_bytes += found.dataset.size_bytes
        return found.dataset
    if claim.tracked is not None:
        dataset, written = datasets.write(_place(look), claim, whole[claim.path])
        contents.add(claim.files, written)
        return dataset
    written = _write_content(look, claim.path, claim.files)
    contents.add(claim.files, written)
    name = os.fsdecode(claim.path)
    return Dataset(name=name, kind="files", tree=written.digest, size_bytes=written.size_bytes)


# --- the last look -----------------------------------------------------------------------------------------


def _look_again(look: Look, contents: Contents) -> None:
    """Raise FileChanged unless everything is as it was at the first look."""
    if contents.inspected is not None:
        contents.inspected.check()
    if not _same_tree(look, contents):
        raise FileChanged("files came, went or were committed while the workspace was captured")
    if look.dry_run:
        return
    for files, digest in contents.stored:
        staged = any(str(file.location).startswith(str(look.staging)) for file in files[:1])
        if staged:
            continue
        fresh = [SourceFile(path=file.path, location=file.location) for file in files]
        if not trees.is_still(look.repo.objects, look.repo.locations, fresh, look.index, digest):
            raise FileChanged("files were changed while the workspace was captured")


def _same_tree(look: Look, contents: Contents) -> bool:
    """Return whether source control says of the tree what it said at the first look."""
    if contents.glance is not None:
        return look.source.glance(look.root)() == contents.glance
    return look.source.state(look.root).says(contents.state)
