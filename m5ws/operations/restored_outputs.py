"""Output files of a script that has no session: copied into the store while it runs, and back when it is resumed."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from m5ws.errors import M5Error, NotFound
from m5ws.operations import fresh_directory, saved_outputs
from m5ws.ports import Progress, SourceFile
from m5ws.records import Checkpoint, Content, Digest, Run, Tree
from m5ws.repository import Repository, checkpoints, outputs, trees
from m5ws.repository.materialise import materialise

_log = logging.getLogger(__name__)


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """Output files in the store: of which attempt, whether from its end, and the digest of their checkpoint."""

    run: str
    attempt: int
    final: bool
    digest: Digest


def newest(repo: Repository, run: str) -> Stored | None:
    """Return a run's newest output files, or None if it has none. Raises CorruptObject."""
    copies = outputs.names(repo, run)
    copied = outputs.attempt_of(copies[-1]) if copies else 0
    for name in sorted(checkpoints.valid(repo, run), key=checkpoints.attempt_of, reverse=True):
        attempt = checkpoints.attempt_of(name)
        if attempt < copied:
            break
        digest, record = checkpoints.find(repo, run, name)
        if repo.objects.get_record(record.content, Content).format == "files/1":
            return Stored(run=run, attempt=attempt, final=True, digest=digest)
    if not copies:
        return None
    return Stored(run=run, attempt=copied, final=False, digest=outputs.find(repo, run, copies[-1])[0])


def write(repo: Repository, stored: Stored, target: Path, progress: Progress | None = None) -> Tree:
    """Write stored output files into `target`, which is absent or empty; return their tree.

    Raises UsageError for another target, NotFound, CorruptObject, NotWritten.
    """
    content = _content(repo, stored.digest)
    if content.tree is None:
        raise NotFound(f"the output files of run {stored.run} have no tree")
    tree = trees.located(repo.objects, content.tree, content.packing)
    with fresh_directory.filled(target) as made:
        materialise(repo.objects, [tree], made, progress, read_only=False)
    return tree


def restore(repo: Repository, stored: Stored, work: Path) -> str:
    """Put stored output files where the script wrote them, over those of the snapshot; return a message.

    Raises as `write`, and OSError.
    """
    aside = work.with_name("restored")
    tree = write(repo, stored, aside)
    for entry in tree.entries:
        source, target = aside / os.fsdecode(entry.path), work / os.fsdecode(entry.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
    files = f"{len(tree.entries):,} output files of attempt {stored.attempt}"
    return f"{files} were given to the script, which has to go on from them by itself"


class Copying:
    """Copies output files into the store every `minutes`, if they have changed; None: never."""

    def __init__(
        self, repo: Repository, run: Run, attempt: int, minutes: float | None, files: Callable[[], list[SourceFile]]
    ) -> None:
        self._repo, self._run, self._attempt, self._files = repo, run, attempt, files
        self._interval_s = 60 * minutes if minutes is not None and run.purpose == "train" else None
        self._copied_s = time.monotonic()
        self._content: Digest | None = None
        self._number = 0

    def copy(self) -> str | None:
        """Copy if it is time to; return what went wrong, or None."""
        if self._interval_s is None or time.monotonic() - self._copied_s < self._interval_s:
            return None
        try:
            files = self._files()
            if not files:
                return None
            found = saved_outputs.content(self._repo, self._run, files)
            if found != self._content:
                copy = Checkpoint(
                    run=self._run.id,
                    snapshot=self._run.snapshot,
                    attempt=self._attempt,
                    step=self._number,
                    content=found,
                )
                outputs.publish(self._repo, copy, self._number)
                self._content, self._number = found, self._number + 1
        except (M5Error, OSError) as error:
            # Also a file that the script writes at this moment: the next copy has it.
            return str(error)
        finally:
            self._copied_s = time.monotonic()
        return None


def _content(repo: Repository, checkpoint: Digest) -> Content:
    return repo.objects.get_record(repo.objects.get_record(checkpoint, Checkpoint).content, Content)
