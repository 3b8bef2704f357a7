"""Inputs and results of one capture of a workspace."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from m5ws.config.settings import SEARCH_RULES, Settings
from m5ws.environment.observe.machine import Machine
from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.records.snapshot import Dataset, RemoteDataset, Tokenizer
from m5ws.repository.files import trees
from m5ws.repository.files.index import Index, Written
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot.inspection import InspectedFiles
from m5ws.snapshot.sources.dvc import Dvc
from m5ws.snapshot.sources.git import Git
from m5ws.snapshot.sources.interface import SourceState
from m5ws.snapshot.sources.tokenizer import Tokenizers

PUBLISHED = "published"
"""Kind of marks in the index: a tree or a snapshot, and the published snapshot with it."""
Warn = Callable[[str], None]
"""Called with a line for people about the workspace, before its files are stored."""


class CaptureContext(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of a capture. `staging` is a folder for fetched datasets; the first fetch makes it.

    With `observe`, a new annotation has the environment of this machine.

    `warnings` come from the capture, each passed to `on_warning` once.
    """

    root: Path
    settings: Settings
    repo: Repository
    source: Git
    datasets: Dvc | None
    probe: Tokenizers | None
    observer: Machine
    index: Index
    staging: Path
    dry_run: bool
    observe: bool
    progress: Progress | None
    on_warning: Warn | None = None
    warnings: list[str] = []

    def warn(self, lines: Iterable[str]) -> None:
        """Add warnings, and pass on new warnings."""
        for line in lines:
            if line not in self.warnings:
                self.warnings.append(line)
                if self.on_warning is not None:
                    self.on_warning(line)

    @property
    def allowed(self) -> Digest:
        """A digest of the rules for secrets and of the exemptions from them."""
        return self.repo.objects.digest(f"{SEARCH_RULES} {self.settings.secrets!r}".encode())

    def inspect(self, files: Sequence[SourceFile]) -> None:
        """Check files that are pinned by content. Raises as `inspection.inspect_content`."""
        from m5ws.snapshot import inspection

        inspection.inspect_content(files, self.settings.secrets.allow)

    def write(self, files: Sequence[SourceFile]) -> Written:
        return trees.write_tree(self.repo.objects, files, self.index, self.progress, self.dry_run)

    def passed(self, check: str, *parts: Sequence[SourceFile]) -> tuple[Written, ...] | None:
        """Return the stored tree of each of `parts` if its files have passed a check and not changed, else None.

        Costs a stat per file.
        """
        recorded = [trees.recorded(self.repo.objects, files, self.index) for files in parts]
        if any(tree is None or self._named(check) not in tree.passed for tree in recorded):
            return None
        known = [tree.tree for tree in recorded if tree is not None]
        if all(self.is_published(tree.digest) for tree in known):
            return tuple(known)
        return trees.present(self.repo.objects, recorded)

    def is_published(self, digest: Digest) -> bool:
        """Return True if the store lists a snapshot with this id or tree, which this workspace published.

        All of its objects exist: it was published after them, and gc deletes none of them.
        """
        published = dict(mark.split(":") for mark in self.index.marks(PUBLISHED))
        return digest in published and snapshots.is_published(self.repo, published[digest])

    def mark_passed(self, check: str, *parts: Sequence[SourceFile]) -> None:
        """Record that the files of `parts`, which are written, have passed a check."""
        for files in parts:
            trees.mark_passed(self.repo.objects, files, self.index, self._named(check))

    def _named(self, check: str) -> str:
        return f"{check}:{self.allowed}"


class CaptureResult(msgspec.Struct, kw_only=True):
    """Durable parts of a workspace, with counts and notes. `stored`: files and their tree, for the last comparison."""

    state: SourceState
    dirty: bool = False
    code: Digest = ""
    config: Digest = ""
    tokenizer: Tokenizer | None = None
    datasets: tuple[Dataset, ...] = ()
    remote: tuple[RemoteDataset, ...] = ()
    files: int = 0
    size_bytes: int = 0
    new_bytes: int = 0
    unchanged: bool = True
    notes: list[str] = []
    stored: list[tuple[Sequence[SourceFile], Digest]] = []
    inspected: InspectedFiles | None = None

    def add(self, files: Sequence[SourceFile], written: Written) -> Digest:
        self.files += written.files
        self.size_bytes += written.size_bytes
        self.new_bytes += written.new_bytes
        self.unchanged = self.unchanged and written.unchanged
        if files:
            self.stored.append((files, written.digest))
        return written.digest
