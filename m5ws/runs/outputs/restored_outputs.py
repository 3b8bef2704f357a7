"""Output files in the store: listed, written to a folder, and restored at a resume.

A resume gets one whole copy, of one moment: each file, folder and link of that moment, with its time, and no other.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from m5ws import fresh_directory
from m5ws.errors import CorruptObject, NotFound
from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Content
from m5ws.records.tree import Entry, Tree
from m5ws.repository import bindings, concurrency, outputs
from m5ws.repository.files import trees
from m5ws.repository.files.materialise import materialise
from m5ws.repository.repository import Repository
from m5ws.runs import work_directories
from m5ws.runs.outputs.outputs import folders_of


class StoredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """Output files in the store, with their name and the digest of their content."""

    run: str
    name: str
    content: Digest

    @property
    def attempt(self) -> int:
        return outputs.attempt_of(self.name)

    @property
    def final(self) -> bool:
        """True if the copy was made at the attempt's end."""
        return outputs.is_final(self.name)


class OutputsRow(msgspec.Struct, frozen=True, kw_only=True):
    """Output files in a list. `when_s`: seconds since the epoch, by the store's clock."""

    name: str
    attempt: int
    final: bool
    when_s: float
    content: Digest
    files: int
    size_bytes: int


def listing(repo: Repository, run: str) -> tuple[OutputsRow, ...]:
    """Return all output files of a run, oldest first. Raises NotFound, CorruptObject."""
    return tuple(concurrency.for_each(lambda name: _row(repo, run, name), outputs.names(repo, run)))


def _row(repo: Repository, run: str, name: str) -> OutputsRow:
    content = bindings.files(repo.objects, outputs.key(run, name))[1].content
    tree = _tree(repo, content)
    return OutputsRow(
        name=name,
        attempt=outputs.attempt_of(name),
        final=outputs.is_final(name),
        when_s=stored_s(repo, run, name),
        content=content,
        files=len(tree.entries),
        size_bytes=tree.size_bytes,
    )


def stored_s(repo: Repository, run: str, name: str) -> float:
    """Return the time at which output files were stored, by the store's clock; 0 if they are gone."""
    stat = repo.store.stat(outputs.key(run, name))
    return stat.modified_s if stat is not None else 0.0


def newest(repo: Repository, run: str, attempt: int | None = None) -> StoredOutputs | None:
    """Return the newest output files of a run, or of one attempt; None if there are none. Raises CorruptObject."""
    names = [name for name in outputs.names(repo, run) if attempt in (None, outputs.attempt_of(name))]
    return load(repo, run, names[-1]) if names else None


def load(repo: Repository, run: str, name: str) -> StoredOutputs:
    """Return the output files with a name. Raises NotFound, CorruptObject."""
    return StoredOutputs(run=run, name=name, content=outputs.find(repo, run, name)[1].content)


def newest_to_restore(repo: Repository, run: str) -> StoredOutputs | None:
    """Return a run's newest output files; None if they have no file. Raises CorruptObject."""
    stored = newest(repo, run)
    return stored if stored is not None and files(repo, stored.content) else None


def require_newest(repo: Repository, run: str, attempt: int | None = None) -> StoredOutputs:
    """Return the newest output files of a run, or of one attempt. Raises NotFound if there are none, CorruptObject."""
    stored = newest(repo, run, attempt)
    if stored is None and attempt is not None:
        raise NotFound(
            f"attempt {attempt} of run {run} has no output files in the store",
            hint=f"`m5ws outputs {run}` lists the attempts that have some.",
        )
    if stored is None:
        raise NotFound(
            f"run {run} has no output files in the store",
            hint="Set `[run] outputs` in m5ws.toml to the files and folders that the script writes.",
        )
    return stored


def write(repo: Repository, stored: StoredOutputs, target: Path, progress: Progress | None = None) -> Tree:
    """Write stored output files into `target`, which is missing or empty, and return their tree.

    Raises UsageError for another target, NotFound, CorruptObject, NotWritten.
    """
    tree = _tree(repo, stored.content)
    _write(repo, tree, target, progress)
    return tree


def _write(repo: Repository, tree: Tree, target: Path, progress: Progress | None = None) -> None:
    with fresh_directory.create(target) as made:
        materialise(repo.objects, repo.locations, [tree], made, progress, read_only=False)


def restore(repo: Repository, stored: StoredOutputs, work: Path) -> str:
    """Restore output files into the work directory, over the snapshot's files, and return a message.

    Raises the errors of `write`, and OSError.
    """
    record = outputs.find(repo, stored.run, stored.name)[1]
    links = dict(record.links)
    tree = _tree(repo, record.content)
    if len(record.modified_ns) != len(tree.entries):
        raise CorruptObject(f"output files {stored.name} of run {stored.run} have another number of times than files")
    timed = zip(tree.entries, record.modified_ns, strict=True)
    wanted = [(entry, time_ns) for entry, time_ns in timed if not _is_linked(entry.path, links)]
    aside = work.with_name(work_directories.RESTORED)
    _write(repo, Tree(entries=tuple(entry for entry, _ in wanted)), aside)
    for entry, time_ns in wanted:
        place = _clear(work, entry.path)
        (aside / os.fsdecode(entry.path)).replace(place)
        os.utime(place, ns=(time_ns, time_ns))
    shutil.rmtree(aside)
    for path, target in links.items():
        os.symlink(os.fsdecode(target), _clear(work, path))
    for path, _ in record.folders:
        _make_folder(work, _parts(path))
    for path, time_ns in record.folders:
        os.utime(work / os.fsdecode(path), ns=(time_ns, time_ns))
    return (
        f"{len(wanted):,} output files of attempt {stored.attempt} were restored, from the copy {stored.name}; "
        "the script itself must continue from them"
    )


def _is_linked(path: bytes, links: dict[bytes, bytes]) -> bool:
    """Return True if a path is a link, or in a folder that is one."""
    return any(place in links for place in (*folders_of(path), path))


def _clear(work: Path, path: bytes) -> Path:
    """Return the place of a file or link, with nothing there, in real folders."""
    *folders, name = _parts(path)
    place = _make_folder(work, folders) / name
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    return place


def _make_folder(work: Path, parts: Sequence[str]) -> Path:
    """Make a folder and its parents, in place of any file or link. Nothing is made outside of `work`."""
    folder = work
    for part in parts:
        folder /= part
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            folder.unlink()
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _parts(path: bytes) -> list[str]:
    """Return the parts of a path below the work directory. Raises CorruptObject for a path that leads elsewhere."""
    parts = path.split(b"/")
    if not {b"", b".", b".."}.isdisjoint(parts):
        raise CorruptObject(f"output files have the forbidden path {path!r}")
    return list(map(os.fsdecode, parts))


def files(repo: Repository, content: Digest) -> dict[bytes, Entry]:
    """Return the entries of stored output files by path, as their tree has them. Raises NotFound, CorruptObject."""
    record = repo.objects.get_record(content, Content)
    return {entry.path: entry for entry in trees.load(repo.objects, record.tree).entries} if record.tree else {}


def _tree(repo: Repository, digest: Digest) -> Tree:
    """Return the tree of a content with output files. Raises NotFound, CorruptObject."""
    content = repo.objects.get_record(digest, Content)
    if content.tree is None:
        raise NotFound(f"content {digest} has no files")
    return trees.located(repo.objects, repo.locations, content.tree, content.packing)
