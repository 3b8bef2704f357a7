"""Interfaces of the sources of a snapshot: git, DVC, tokenizers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from m5ws.records.commit import CommitFacts, CommitsBetween
from m5ws.repository.files.interface import SourceFile


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a working tree. Paths are relative to its root, and sorted.

    `files` are tracked files, and untracked ones that are not ignored, with those of submodules and nested
    repositories. `changed` are paths that differ from `commit`, missing files included; `commit` is None on an unborn
    branch and without a repository. `untracked` are the files that git does not track, all of them without a
    repository. `remote` and `author` have no credentials.
    """

    commit: str | None
    branch: str | None
    remote: str | None
    author: str | None
    files: tuple[bytes, ...]
    changed: tuple[bytes, ...] = ()
    untracked: frozenset[bytes] = frozenset()
    notes: tuple[str, ...] = ()


class SourceControl(Protocol):
    """Reads a working tree; never writes to it."""

    def state(self, root: Path) -> SourceState:
        """Return the state of the working tree at `root`, with files below `root` alone.

        Without a repository it has every file. It never has `.git` and `.m5ws`.
        """


class TrackedDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset that another tool pins.

    `path` is inside the workspace, `pin` is the file that names the dataset, `hash` the tool's own hash of the content.
    `executable` is the mode in the pin; the mode on disk does not count.
    """

    path: bytes
    pin: bytes
    kind: Literal["dvc"]
    hash: str
    size_bytes: int | None = None
    executable: bool = False


class CommitHistory(Protocol):
    """History of the commits around a workspace. A missing commit is part of the result, and not an error."""

    def facts(self, commit: str) -> CommitFacts: ...

    def between(self, old: str, new: str) -> CommitsBetween: ...


class DatasetSource(Protocol):
    """Datasets that another tool tracks (DVC)."""

    def find(self, root: Path, files: Sequence[bytes]) -> tuple[TrackedDataset, ...]:
        """Return every dataset whose pin is in `files`, sorted by path. Only pins are read."""

    def select(self, root: Path, dataset: TrackedDataset, files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
        """Return those of `files`, which lie at the dataset's path, that its tool does not ignore."""

    def verify(self, dataset: TrackedDataset, files: Sequence[SourceFile]) -> None:
        """Compare every byte of `files` with the pin. Raises M5Error with a hint if they differ."""

    def fetch(self, root: Path, dataset: TrackedDataset, target: Path) -> tuple[SourceFile, ...]:
        """Write the dataset's files below `target`, from the tool's cache or remote, and verify each.

        Raises NotFound for missing files, CorruptObject for damaged ones, MissingExtra.
        """


class TokenizerProbe(Protocol):
    """Computes token ids with a tokenizer."""

    def version(self) -> str | None:
        """Return the library's name and version, None if it is not installed. Imports nothing heavy."""

    def ids(self, tokenizer_json: bytes, text: str) -> tuple[int, ...]:
        """Return the token ids of `text`. Raises M5Error if the library cannot read the file."""
