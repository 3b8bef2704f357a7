"""Records of a snapshot: code, configuration, tokenizer, data and environment."""

from typing import Literal

from m5ws.records.base import Count, Digest, Placed, Record
from m5ws.records.environment import Declared, Determinism


class Code(Record, frozen=True, kw_only=True):
    """The working tree as it was: the commit it stands on, whether it differs from it, and every file."""

    commit: str | None
    dirty: bool
    tree: Digest


class Tokenizer(Record, frozen=True, kw_only=True):
    """Tokenizer files, and the ids that they give for a probe text (None if no library could be asked)."""

    tree: Digest
    probe_text: str | None = None
    probe_ids: tuple[int, ...] | None = None


class Dataset(Record, frozen=True, kw_only=True):
    """One pinned dataset; `hash` is the other tool's name for it (DVC's md5), `tree` is ours."""

    name: str
    kind: Literal["files", "dvc"]
    tree: Digest
    size_bytes: Count
    hash: str | None = None


class Snapshot(Record, tag="snapshot/1", frozen=True, kw_only=True):
    """Everything a run is a function of. Its digest is its id.

    The trees of code, config, tokenizer and datasets are disjoint; materialised together they are the workspace.
    """

    code: Code
    config: Digest
    tokenizer: Tokenizer | None
    datasets: tuple[Dataset, ...]
    declared: Declared
    determinism: Determinism

    @property
    def trees(self) -> dict[str, Digest]:
        """Part name to tree digest."""
        parts = {"code": self.code.tree, "config": self.config}
        if self.tokenizer is not None:
            parts["tokenizer"] = self.tokenizer.tree
        return parts | {f"data:{dataset.name}": dataset.tree for dataset in self.datasets}


class Annotation(Placed, tag="annotation/1", frozen=True, kw_only=True):
    """What is said about a snapshot without being part of it; `packings` are those of its trees, by the tree."""

    created_s: float
    author: str | None = None
    message: str | None = None
    branch: str | None = None
    remote: str | None = None
    observed: Digest | None = None
    notes: tuple[str, ...] = ()
    derived_from: Digest | None = None
    overrides: tuple[str, ...] = ()
    packings: dict[Digest, Digest] = {}
