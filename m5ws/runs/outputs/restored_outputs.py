"""Output files of a script without a session in the store: listed, written to a folder, and restored at a resume."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from m5ws import fresh_directory
from m5ws.errors import NotFound
from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Content
from m5ws.records.tree import Entry, Tree
from m5ws.repository import bindings, checkpoints, concurrency, outputs
from m5ws.repository.files import trees
from m5ws.repository.files.materialise import materialise
from m5ws.repository.repository import Repository
from m5ws.runs import work_directories
from m5ws.runs.outputs import outputs as output_files
from m5ws.runs.state import RunState


class StoredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """Output files in the store: their attempt, whether they are final, and the digest of their content.

    `resume` is the content that a resume gets, if it is another one. `modified_s` has the modification times of its
    files, and `folders` the empty folders beside them.
    """

    run: str
    attempt: int
    final: bool
    content: Digest
    resume: Digest | None = None
    modified_s: tuple[float, ...] = ()
    folders: tuple[bytes, ...] = ()

    @property
    def restored(self) -> Digest:
        """The content that a resume gets."""
        return self.resume or self.content


class OutputsRow(msgspec.Struct, frozen=True, kw_only=True):
    """Output files in a list. `when_s`: seconds since the epoch, by the store's clock."""

    name: str
    attempt: int
    final: bool
    when_s: float
    content: Digest
    files: int
    size_bytes: int


def listing(repo: Repository, run: str, known: RunState) -> tuple[OutputsRow, ...]:
    """Return all output files of a run, in order of attempts. Raises NotFound, CorruptObject."""
    # Older versions published final output files as a checkpoint.
    labels = sorted(
        {checkpoint.name for attempt in known.attempts for checkpoint in attempt.checkpoints if checkpoint.outputs}
    )
    of_old = [(label, checkpoints.key(run, label), checkpoints.attempt_of(label)) for label in labels]
    stored = [(label, outputs.key(run, label), outputs.attempt_of(label)) for label in outputs.names(repo, run)]
    return tuple(
        concurrency.for_each(lambda item: _row(repo, *item), sorted([*of_old, *stored], key=lambda item: item[2]))
    )


def _row(repo: Repository, name: str, where: str, attempt: int) -> OutputsRow:
    stat = repo.store.stat(where)
    content = bindings.files(repo.objects, where)[1].content
    tree = _tree(repo, content)
    return OutputsRow(
        name=name,
        attempt=attempt,
        final=outputs.is_final(name) or not outputs.is_name(name),
        when_s=stat.modified_s if stat is not None else 0.0,
        content=content,
        files=len(tree.entries),
        size_bytes=tree.size_bytes,
    )


def newest(repo: Repository, run: str, before: str | None = None) -> StoredOutputs | None:
    """Return a run's newest output files, or the newest with a name before `before`; None if there are none.

    Raises CorruptObject.
    """
    names = [name for name in outputs.names(repo, run) if before is None or name < before]
    label = names[-1] if names else None
    attempt = outputs.attempt_of(label) if label is not None else 0
    final = label is not None and outputs.is_final(label)
    # Older versions published final output files as a checkpoint.
    for name in sorted(checkpoints.valid(repo, run), key=checkpoints.attempt_of, reverse=True):
        made = checkpoints.attempt_of(name)
        if before is not None and made >= outputs.attempt_of(before):
            continue
        if made < attempt or (made == attempt and final):
            break
        _, record = checkpoints.find(repo, run, name)
        if repo.objects.get_record(record.content, Content).format == "files/1":
            return StoredOutputs(run=run, attempt=made, final=True, content=record.content)
    if label is None:
        return None
    found = outputs.find(repo, run, label)[1]
    # Copies of older versions are `Checkpoint` records, without these fields.
    known = {name: getattr(found, name) for name in ("resume", "modified_s", "folders") if hasattr(found, name)}
    return StoredOutputs(run=run, attempt=attempt, final=final, content=found.content, **known)


def newest_to_restore(repo: Repository, run: str) -> StoredOutputs | None:
    """Return a run's newest output files; None if a resume gets no file of them. Raises CorruptObject."""
    stored = newest(repo, run)
    return stored if stored is not None and _tree(repo, stored.restored).entries else None


def require_newest(repo: Repository, run: str, attempt: int | None = None) -> StoredOutputs:
    """Return the newest output files of a run, or of one attempt. Raises NotFound if there are none, CorruptObject."""
    stored = newest(repo, run, outputs.name(attempt + 1, "") if attempt is not None else None)
    if attempt is not None and (stored is None or stored.attempt != attempt):
        raise NotFound(
            f"attempt {attempt} of run {run} has no output files in the store",
            hint=f"`m5ws outputs {run}` lists the attempts that have some.",
        )
    if stored is None:
        raise NotFound(
            f"run {run} has no output files in the store",
            hint="Set `[run] outputs` in m5ws.toml to the folders that the script writes to.",
        )
    return stored


def write(repo: Repository, stored: StoredOutputs, target: Path, progress: Progress | None = None) -> Tree:
    """Write all stored output files into `target`, which is missing or empty, and return their tree.

    Raises UsageError for another target, NotFound, CorruptObject, NotWritten.
    """
    return _write(repo, stored.content, target, progress)


def _write(repo: Repository, content: Digest, target: Path, progress: Progress | None = None) -> Tree:
    tree = _tree(repo, content)
    with fresh_directory.create(target) as made:
        materialise(repo.objects, repo.locations, [tree], made, progress, read_only=False)
    return tree


def restore(repo: Repository, stored: StoredOutputs, work: Path) -> str:
    """Restore the output files that a resume gets into the work directory, over those of the snapshot.

    Return a message, with the files of earlier moments and those that are not restored. Raises the errors of `write`,
    and OSError.
    """
    aside = work.with_name(work_directories.RESTORED)
    tree = _write(repo, stored.restored, aside)
    for entry in tree.entries:
        _move(entry.path, aside, work)
    shutil.rmtree(aside)
    made = [folder for path in stored.folders for folder in _make_folders(work, path)]
    _set_times(tree, stored.modified_s, work)
    # They are older than all files, as when the script made them.
    for folder in made:
        os.utime(folder, times=(0.0, min(filter(None, stored.modified_s), default=1.0) - 1.0))
    choice = _describe_choice(stored, tree, _tree(repo, stored.content)) if stored.resume is not None else ""
    restored = f"{len(tree.entries):,} output files of attempt {stored.attempt} were restored"
    return f"{restored}{choice}; the script itself must continue from them"


def _describe_choice(stored: StoredOutputs, tree: Tree, left: Tree) -> str:
    """Return the restored files that the attempt did not leave, and the files that it left which are not restored."""
    known, got = {(entry.path, entry.digest) for entry in left.entries}, {entry.digest for entry in tree.entries}
    earlier = [entry for entry in tree.entries if entry.link is None and (entry.path, entry.digest) not in known]
    others = [entry for entry in left.entries if entry.digest not in got]
    words = []
    if earlier:
        words.append(f"of an earlier moment: {_listed(earlier)}")
    if others:
        way = f"`m5ws outputs {stored.run} DIRECTORY --attempt {stored.attempt}`"
        words.append(f"in the store, but not restored: {_listed(others)} ({way} writes them)")
    return f" without a checkpoint that was not complete; {'; '.join(words)}" if words else ""


def _listed(entries: Sequence[Entry]) -> str:
    return output_files.listed([entry.name for entry in entries])


def _set_times(tree: Tree, modified_s: Sequence[float], work: Path) -> None:
    """Set the modification times of restored files, as far as they are known."""
    if len(modified_s) != len(tree.entries):
        return
    for entry, time_s in zip(tree.entries, modified_s, strict=True):
        if time_s:
            os.utime(work / os.fsdecode(entry.path), (time_s, time_s), follow_symlinks=False)


def _make_folders(work: Path, path: bytes) -> list[Path]:
    """Make an empty folder and those around it, and return those that were made.

    Nothing is made outside of `work`, or in place of a file or link.
    """
    made, folder = list[Path](), work
    for part in os.fsdecode(path).split("/"):
        folder /= part
        if part in ("", ".", "..") or folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            break
        if not folder.exists():
            folder.mkdir()
            made.append(folder)
    return made


def _move(path: bytes, source: Path, target: Path) -> None:
    """Move a file or link from one folder to the same path in another, over an existing file, link or folder.

    Nothing is written behind a link: a real folder replaces it.
    """
    folder = target
    *folders, name = os.fsdecode(path).split("/")
    for part in folders:
        folder /= part
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            folder.unlink()
        folder.mkdir(parents=True, exist_ok=True)
    place = folder / name
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    (source / os.fsdecode(path)).replace(place)


def times(repo: Repository, stored: StoredOutputs) -> dict[tuple[bytes, Digest], float]:
    """Return the modification times of the files that a resume gets, by path and digest. Raises as `files`."""
    entries = _tree(repo, stored.restored).entries
    if len(stored.modified_s) != len(entries):
        return {}
    return {(entry.path, entry.digest): time_s for entry, time_s in zip(entries, stored.modified_s, strict=True)}


def located(repo: Repository, content: Digest) -> dict[bytes, Entry]:
    """Return the entries of stored output files by path, with the parts of small files. Raises as `files`."""
    return {entry.path: entry for entry in _tree(repo, content).entries}


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
