"""Output files of a script without a session: copied to the store while it runs, and restored at a resume."""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from m5ws import fresh_directory
from m5ws.errors import M5Error, NotFound
from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Content
from m5ws.records.outputs import OutputFiles
from m5ws.records.run import Run
from m5ws.records.tree import Tree
from m5ws.repository import bindings, checkpoints, concurrency, outputs
from m5ws.repository.files import trees
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.materialise import materialise
from m5ws.repository.repository import Repository
from m5ws.runs.outputs import saved_outputs
from m5ws.runs.state import RunState

_log = logging.getLogger(__name__)


class StoredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """Output files in the store: their attempt, whether they are final, and the digest of their content."""

    run: str
    attempt: int
    final: bool
    content: Digest


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


def newest(repo: Repository, run: str) -> StoredOutputs | None:
    """Return a run's newest output files, or None if it has none. Raises CorruptObject."""
    label = next(reversed(outputs.names(repo, run)), None)
    attempt = outputs.attempt_of(label) if label is not None else 0
    final = label is not None and outputs.is_final(label)
    # Older versions published final output files as a checkpoint.
    for name in sorted(checkpoints.valid(repo, run), key=checkpoints.attempt_of, reverse=True):
        made = checkpoints.attempt_of(name)
        if made < attempt or (made == attempt and final):
            break
        _, record = checkpoints.find(repo, run, name)
        if repo.objects.get_record(record.content, Content).format == "files/1":
            return StoredOutputs(run=run, attempt=made, final=True, content=record.content)
    if label is None:
        return None
    return StoredOutputs(run=run, attempt=attempt, final=final, content=outputs.find(repo, run, label)[1].content)


def require_newest(repo: Repository, run: str) -> StoredOutputs:
    """Return a run's newest output files. Raises NotFound if it has none, CorruptObject."""
    if (stored := newest(repo, run)) is None:
        raise NotFound(
            f"run {run} has no output files in the store",
            hint="Set `[run] outputs` in m5ws.toml to the folders that the script writes to.",
        )
    return stored


def write(repo: Repository, stored: StoredOutputs, target: Path, progress: Progress | None = None) -> Tree:
    """Write stored output files into `target`, which is missing or empty, and return their tree.

    Raises UsageError for another target, NotFound, CorruptObject, NotWritten.
    """
    tree = _tree(repo, stored.content)
    with fresh_directory.create(target) as made:
        materialise(repo.objects, repo.locations, [tree], made, progress, read_only=False)
    return tree


def restore(repo: Repository, stored: StoredOutputs, work: Path) -> str:
    """Restore stored output files into the work directory, over those of the snapshot, and return a message.

    Raises the errors of `write`, and OSError.
    """
    aside = work.with_name("restored")
    tree = write(repo, stored, aside)
    for entry in tree.entries:
        _move(entry.path, aside, work)
    files = f"{len(tree.entries):,} output files of attempt {stored.attempt}"
    return f"{files} were restored; the script itself must continue from them"


def put_back(repo: Repository, stored: StoredOutputs, paths: Sequence[bytes], work: Path) -> None:
    """Restore some stored output files into the work directory, in the order of `paths`, over those that are there.

    Raises NotFound, CorruptObject, NotWritten, OSError.
    """
    wanted = set(paths)
    tree = _tree(repo, stored.content)
    part = msgspec.structs.replace(tree, entries=tuple(entry for entry in tree.entries if entry.path in wanted))
    with tempfile.TemporaryDirectory(dir=work.parent, prefix="stored-") as folder:
        materialise(repo.objects, repo.locations, [part], Path(folder), read_only=False)
        for path in paths:
            _move(path, Path(folder), work)


def _move(path: bytes, source: Path, target: Path) -> None:
    """Move a file from one folder to the same path in another, over a file that is there."""
    place = target / os.fsdecode(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    (source / os.fsdecode(path)).replace(place)


class OutputCopier:
    """Copies output files to the store every `minutes`, if they have changed; never if None."""

    def __init__(
        self, repo: Repository, run: Run, attempt: int, minutes: float | None, files: Callable[[], list[SourceFile]]
    ) -> None:
        self._repo, self._run, self._attempt, self._files = repo, run, attempt, files
        self._interval_s = 60 * minutes if minutes is not None and run.purpose == "train" else None
        self._copied_s = time.monotonic()
        self._content: Digest | None = None
        self._number = 0

    def copy(self) -> str | None:
        """Copy the files if it is time. Return the error, or None."""
        if self._interval_s is None or time.monotonic() - self._copied_s < self._interval_s:
            return None
        try:
            files = self._files()
            if not files:
                return None
            content = saved_outputs.content(self._repo, self._run, files)
            if content != self._content:
                copy = OutputFiles(
                    run=self._run.id,
                    snapshot=self._run.snapshot,
                    attempt=self._attempt,
                    content=content,
                    moment=f"{self._number:06d}",
                )
                outputs.publish(self._repo, copy)
                self._content, self._number = content, self._number + 1
        except (M5Error, OSError) as error:
            # Such as a file that the script is writing. The next copy has it.
            return str(error)
        finally:
            self._copied_s = time.monotonic()
        return None


def sizes(repo: Repository, stored: StoredOutputs) -> dict[bytes, int]:
    """Return the sizes of stored output files in bytes, by their paths in the work directory.

    Raises NotFound, CorruptObject.
    """
    return {entry.path: entry.size_bytes for entry in _tree(repo, stored.content).entries}


def _tree(repo: Repository, digest: Digest) -> Tree:
    """Return the tree of a content with output files. Raises NotFound, CorruptObject."""
    content = repo.objects.get_record(digest, Content)
    if content.tree is None:
        raise NotFound(f"content {digest} has no files")
    return trees.located(repo.objects, repo.locations, content.tree, content.packing)
