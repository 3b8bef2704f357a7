"""Records of a snapshot: code, configuration, tokenizer, data and environment."""

import posixpath
from typing import Annotated, Literal

import msgspec

from m5ws.records.base import Count, Digest, KeyedRecord, Record
from m5ws.records.environment import Declared, Determinism


class Code(Record, frozen=True, kw_only=True):
    """The working tree: the commit that is checked out, True if files differ from it, and the tree of all files."""

    commit: str | None
    dirty: bool
    tree: Digest


class Tokenizer(Record, frozen=True, kw_only=True):
    """Tokenizer files, and the token ids of a probe text; None if there is no `tokenizer.json`."""

    tree: Digest
    probe_text: str | None = None
    probe_ids: tuple[int, ...] | None = None


class Dataset(Record, frozen=True, kw_only=True):
    """One pinned dataset. `tree` is the digest of its tree, `hash` the other tool's hash (DVC's MD5)."""

    name: str
    kind: Literal["files", "dvc"]
    tree: Digest
    size_bytes: Count
    hash: str | None = None


class ManifestFile(Record, frozen=True, kw_only=True):
    """One file of a remote dataset. `path` is relative to the dataset; it is the name of a dataset that is one file.

    `digest` is "md5:" or "sha256:", and the hex of the whole file. `version` is the version of an object in S3.
    """

    path: Annotated[str, msgspec.Meta(pattern=r"\A(?!/)(?!(?:.*/)?\.{1,2}(?:/|\Z))[^\0]+\Z")]
    size_bytes: Count
    digest: Annotated[str, msgspec.Meta(pattern=r"\A(?:md5:[0-9a-f]{32}|sha256:[0-9a-f]{64})\Z")]
    version: str | None = None


class Manifest(Record, tag="manifest/1", frozen=True, kw_only=True):
    """The files of a remote dataset, sorted by path, without the place of the dataset."""

    files: tuple[ManifestFile, ...]


class RemoteDataset(Record, frozen=True, kw_only=True):
    """A pinned dataset that stays at `url`. `manifest` is the digest of its manifest, `hash` DVC's MD5.

    `url` is a folder or s3://bucket/prefix, with the options to open it (docs/format.md).
    """

    name: str
    kind: Literal["dvc", "s3"]
    url: str
    manifest: Digest
    size_bytes: Count
    files: Count
    hash: str | None = None

    @property
    def folder(self) -> str:
        """The path in the workspace to which the paths of the files are relative. A file is a dataset of DVC alone."""
        is_file = self.kind == "dvc" and not (self.hash or "").endswith(".dir")
        return posixpath.dirname(self.name) if is_file else self.name


class Snapshot(Record, tag="snapshot/1", frozen=True, kw_only=True, omit_defaults=True):
    """All inputs of a run. The digest of this record is the snapshot's id.

    The trees of code, config, tokenizer and datasets are disjoint. Materialised together they are the workspace.
    The files of the datasets in `remote` are not in the store. Without one, the field is not encoded.
    """

    code: Code
    config: Digest
    tokenizer: Tokenizer | None
    datasets: tuple[Dataset, ...]
    declared: Declared
    determinism: Determinism
    remote: tuple[RemoteDataset, ...] = ()

    @property
    def trees(self) -> dict[str, Digest]:
        """Tree digests by the name of the part."""
        parts = {"code": self.code.tree, "config": self.config}
        if self.tokenizer is not None:
            parts["tokenizer"] = self.tokenizer.tree
        return parts | {f"data:{dataset.name}": dataset.tree for dataset in self.datasets}


class Annotation(KeyedRecord, tag="annotation/1", frozen=True, kw_only=True):
    """Message, author and time stored with a snapshot. They do not affect its id."""

    created_s: float
    author: str | None = None
    message: str | None = None
    branch: str | None = None
    remote: str | None = None
    observed: Digest | None = None
    notes: tuple[str, ...] = ()
    derived_from: Digest | None = None
    overrides: tuple[str, ...] = ()
