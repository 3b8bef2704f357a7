"""Interfaces of the sources of a snapshot: git, DVC, tokenizers."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from m5ws.records.commit import CommitFacts, CommitsBetween
from m5ws.repository.files.interface import SourceFile


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """What source control says of a working tree: paths relative to the root that was asked about, sorted.

    `files` are tracked and untracked-not-ignored files that are in the working tree, submodules and nested
    repositories included; `changed` is what of it, or missing from it, differs from `commit`, which is None on an
    unborn branch and without a repository. `remote` and `author` hold no credentials. `stats` is what `lstat` said
    meanwhile of files that did not differ, by path: so asking takes no time of its own. Where not `glanceable`, there
    are files whose changes a glance does not show.
    """

    commit: str | None
    branch: str | None
    remote: str | None
    author: str | None
    files: tuple[bytes, ...]
    changed: tuple[bytes, ...] = ()
    notes: tuple[str, ...] = ()
    stats: Mapping[bytes, os.stat_result] = {}
    glanceable: bool = False

    def says(self, other: "SourceState") -> bool:
        """Return whether both say the same of the tree; stamps of files are not part of it."""
        return msgspec.structs.replace(self, stats={}) == msgspec.structs.replace(other, stats={})


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """What a working tree was at one moment, without naming its files: two that are equal are of the same tree.

    That holds for trees that were `glanceable`, between glances of which the first began more than two seconds after
    `indexed_ns`, when source control last wrote down what files are like.
    """

    said: tuple[bytes, ...]
    indexed_ns: int


class SourceControl(Protocol):
    """Reads a working tree; never writes to it."""

    def glance(self, root: Path) -> Callable[[], Glance | None]:
        """Begin to look at `root`, for a fraction of what `state` costs, and return at once what waits for the answer.

        That is None if it cannot be told so cheaply.
        """

    def state(self, root: Path) -> SourceState:
        """Return the state of the working tree at `root`, of files below `root` alone.

        Without a repository: every file. `.git` and `.m5ws` are never in it.
        """


class TrackedDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset that another tool pins.

    `path` is inside the workspace, `pin` the file that names it, `hash` the tool's own name for the content;
    `executable` is the mode its pin records, which is the only one that counts.
    """

    path: bytes
    pin: bytes
    kind: Literal["dvc"]
    hash: str
    size_bytes: int | None = None
    executable: bool = False
    legacy: bool = False


class CommitHistory(Protocol):
    """History of the commits around a workspace. What is missing is in the answer, and no error."""

    def facts(self, commit: str) -> CommitFacts: ...

    def between(self, old: str, new: str) -> CommitsBetween: ...


class DatasetSource(Protocol):
    """Datasets that another tool tracks (DVC)."""

    def find(self, root: Path, files: Sequence[bytes]) -> tuple[TrackedDataset, ...]:
        """Return every dataset whose pin is among `files`, by reading pins only; sorted by path."""

    def select(self, root: Path, dataset: TrackedDataset, files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
        """Return those of `files`, found where the dataset belongs, that its tool does not ignore."""

    def verify(self, dataset: TrackedDataset, files: Sequence[SourceFile]) -> None:
        """Check every byte of `files` against the pin. Raises M5Error that says what to do about a difference."""

    def fetch(self, root: Path, dataset: TrackedDataset, target: Path) -> tuple[SourceFile, ...]:
        """Write the dataset's files below `target`, from cache or remote, each checked.

        Raises NotFound for bytes that neither has, CorruptObject for wrong ones, MissingExtra.
        """


class TokenizerProbe(Protocol):
    """Asks a tokenizer for token ids."""

    def version(self) -> str | None:
        """Return the library that would answer, with its version; None if there is none. Imports nothing heavy."""

    def ids(self, tokenizer_json: bytes, text: str) -> tuple[int, ...]:
        """Return the token ids of `text`. Raises M5Error for a file that the library cannot read."""
