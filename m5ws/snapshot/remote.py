"""Pins datasets that stay in their remote: a manifest of all files, each present with its size. Nothing is copied.

The list of files of a DVC dataset comes from the remote and matches the pin's MD5. A digest in a manifest is DVC's MD5,
the SHA-256 that S3 has verified, or a SHA-256 of a file that is read once. No digest is assumed.
"""

import hashlib
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from m5ws.config.settings import DataSettings, S3Data
from m5ws.data import origins
from m5ws.errors import ConfigError, CorruptObject, NotFound
from m5ws.progress import report
from m5ws.records import codec
from m5ws.records.snapshot import Manifest, RemoteDataset
from m5ws.repository import concurrency
from m5ws.snapshot.context import CaptureContext
from m5ws.snapshot.partition import tree_path
from m5ws.snapshot.sources.interface import TrackedDataset

if TYPE_CHECKING:
    from m5ws.store.s3.files import S3Files, Version

_MARKS = "remote "
"""Kind of marks in the index: the SHA-256 of a version of an object."""


class _Listed(msgspec.Struct):
    """One entry of DVC's list of the files of a folder."""

    md5: str
    relpath: str


def choose(settings: DataSettings, tracked: Sequence[TrackedDataset]) -> list[TrackedDataset]:
    """Return the DVC datasets that stay in their remote. Raises ConfigError for a path that is none."""
    known = {dataset.path: dataset for dataset in tracked}
    paths = [tree_path(path) for path in settings.stay]
    if unknown := [os.fsdecode(path) for path in paths if path not in known]:
        names = ", ".join(map(os.fsdecode, known)) or "none"
        raise ConfigError(f"[data] stay: {unknown[0]!r} is no dataset of DVC. Datasets of DVC: {names}")
    return [known[path] for path in paths]


def pin(context: CaptureContext, staying: Sequence[TrackedDataset]) -> list[RemoteDataset]:
    """Return the pinned remote datasets, with durable manifests.

    Raises NotFound, CorruptObject, MissingExtra, and the errors of the remote.
    """
    return [
        *(_pin_dvc(context, dataset) for dataset in staying),
        *(_pin_s3(context, wanted) for wanted in context.settings.data.s3),
    ]


def _pinned(
    context: CaptureContext, kind: Literal["dvc", "s3"], name: str, url: str, files: list[dict[str, object]]
) -> RemoteDataset:
    """Return a dataset whose manifest is durable. Raises CorruptObject for an invalid path or digest."""
    ordered = sorted(files, key=lambda file: str(file["path"]))
    try:
        manifest = msgspec.convert({"type": "manifest/1", "files": ordered}, Manifest)
    except msgspec.ValidationError as error:
        raise CorruptObject(f"the list of files of {name} in {url} is invalid: {error}", hint=_LIST) from error
    if len({file.path for file in manifest.files}) < len(manifest.files):
        raise CorruptObject(f"the list of files of {name} in {url} has a path twice", hint=_LIST)
    objects = context.repo.objects
    digest = objects.digest(codec.encode(manifest)) if context.dry_run else objects.put_record(manifest)
    size_bytes = sum(file.size_bytes for file in manifest.files)
    number = len(manifest.files)
    return RemoteDataset(name=name, kind=kind, url=url, manifest=digest, size_bytes=size_bytes, files=number)


_LIST = "Restore the list in the remote, or upload the dataset again."


# --- DVC ---------------------------------------------------------------------------------------------


def _pin_dvc(context: CaptureContext, dataset: TrackedDataset) -> RemoteDataset:
    assert context.datasets is not None
    name = os.fsdecode(dataset.path)
    if not dataset.is_plain:
        raise ConfigError(
            f"[data] stay: the pin of {name} is of DVC 2, whose hashes do not match the bytes of text files",
            hint=f"`dvc cache migrate --dvc-files` and `dvc push {name}` bring the dataset to DVC 3.",
        )
    url = context.datasets.remote_url(context.root, dataset)
    origin = origins.open_url(url, "dvc")
    report(context.progress, f"listing {name} in its remote")
    listed = _files_of(origin, dataset, name, url)
    sizes = origin.sizes(origins.key_of_dvc(file.md5) for file in listed)
    if missing := [file.relpath for file in listed if origins.key_of_dvc(file.md5) not in sizes]:
        raise NotFound(
            f"{len(missing):,} of {len(listed):,} files of {name} are missing in {url}, the first is {missing[0]}",
            hint=f"On a machine that has the data, `dvc push {name}` uploads the missing files.",
        )
    files = [
        {"path": file.relpath, "size_bytes": sizes[origins.key_of_dvc(file.md5)], "digest": f"md5:{file.md5}"}
        for file in listed
    ]
    pinned = _pinned(context, "dvc", name, url, files)
    if dataset.size_bytes is not None and dataset.size_bytes != pinned.size_bytes:
        raise CorruptObject(
            f"{name} in {url} has {pinned.size_bytes:,} bytes, but its pin {os.fsdecode(dataset.pin)} has "
            f"{dataset.size_bytes:,}: a file in the remote is damaged",
            hint="Delete the damaged file in the remote, and `dvc push` it from a good copy.",
        )
    return msgspec.structs.replace(pinned, hash=dataset.hash)


def _files_of(origin: origins.Origin, dataset: TrackedDataset, name: str, url: str) -> list[_Listed]:
    """Return the files of a dataset, by DVC's own list for a folder."""
    if not dataset.hash.endswith(".dir"):
        return [_Listed(md5=dataset.hash, relpath=os.path.basename(name))]
    key = origins.key_of_dvc(dataset.hash)
    try:
        data = origin.read(key)
    except NotFound as error:
        raise NotFound(
            f"the list of files of {name} is missing in {url}: {error}",
            hint=f"On a machine that has the data, `dvc push {name}` uploads the dataset.",
        ) from error
    actual = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if f"{actual}.dir" != dataset.hash:
        raise CorruptObject(
            f"checksum mismatch: the list of files of {name} at {key} in {url}: expected md5 {dataset.hash}, found "
            f"{actual}",
            hint=_LIST,
        )
    try:
        return msgspec.json.decode(data, type=list[_Listed])
    except msgspec.MsgspecError as error:
        raise CorruptObject(f"the list of files of {name} in {url} is invalid: {error}", hint=_LIST) from error


# --- S3 ----------------------------------------------------------------------------------------------


def _pin_s3(context: CaptureContext, wanted: S3Data) -> RemoteDataset:
    name = os.fsdecode(tree_path(wanted.path))
    address = f"{wanted.url}?endpoint_url={wanted.endpoint_url}" if wanted.endpoint_url else wanted.url
    files = origins.s3_files(address, f"the dataset {wanted.path}")
    url = files.url_with_region()
    report(context.progress, f"listing {name} in {wanted.url}")
    versions = list(files.versions())
    if not versions:
        raise NotFound(f"{wanted.url} has no objects", hint="Correct the url of the dataset in m5ws.toml.")
    if unversioned := sum(version.version is None for version in versions):
        context.warn(
            [f"{unversioned:,} objects of {name} have no versions: a run ends when it reads an overwritten object"]
        )
    digests = _digests(context, name, url, files, versions)
    listed: list[dict[str, object]] = [
        {"path": each.key, "size_bytes": each.size_bytes, "digest": digest, "version": each.version}
        for each, digest in zip(versions, digests, strict=True)
    ]
    return _pinned(context, "s3", name, url, listed)


def _digests(
    context: CaptureContext, name: str, url: str, files: "S3Files", versions: Sequence["Version"]
) -> list[str]:
    """Return the digests of objects: remembered, or verified and kept by the server, or of the bytes, read once."""
    kind = f"{_MARKS}{url}"
    known = dict(mark.split(" ", 1)[::-1] for mark in context.index.marks(kind))
    unknown = [each for each in versions if _mark(each) not in known or each.version is None]
    stated = dict(zip(map(_mark, unknown), concurrency.for_each(files.sha256, unknown), strict=True))
    reads = [each for each in unknown if stated[_mark(each)] is None]
    if reads:
        size_bytes = sum(each.size_bytes for each in reads)
        context.warn([f"{len(reads):,} objects of {name} have no SHA-256 in S3: {size_bytes:,} bytes are read once"])
    done = 0
    for each, digest in zip(reads, concurrency.for_each(partial(_read, files), reads), strict=True):
        stated[_mark(each)] = digest
        done += each.size_bytes
        report(context.progress, f"reading {name}", done, sum(read.size_bytes for read in reads))
    digests = known | {mark: f"sha256:{digest}" for mark, digest in stated.items()}
    kept = {f"{digests[_mark(each)]} {_mark(each)}" for each in versions if each.version is not None}
    context.index.remember_marks(kind, kept)
    return [digests[_mark(each)] for each in versions]


def _mark(version: "Version") -> str:
    return f"{version.version} {version.key}"


def _read(files: "S3Files", version: "Version") -> str:
    """Return the SHA-256 of an object, without a copy of it."""
    hasher = _Hasher()
    files.download(version.key, version.version, version.size_bytes, hasher.begin)
    return hasher.hash.hexdigest()


class _Hasher:
    """The receiver of a download that keeps its SHA-256 alone."""

    def begin(self) -> "_Hasher":
        self.hash = hashlib.sha256()
        return self

    def write(self, block: bytes) -> None:
        self.hash.update(block)

    def finish(self, place: str) -> None:
        pass
