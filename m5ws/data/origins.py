"""The place where a remote dataset stays: a folder, or a prefix in S3. It is read, and never written."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from m5ws.errors import MissingExtra, NotFound
from m5ws.records.snapshot import ManifestFile, RemoteDataset
from m5ws.repository import concurrency
from m5ws.store.cache.files import Sink

if TYPE_CHECKING:
    from m5ws.store.s3.files import S3Files

_BLOCK_BYTES = 2**20


class Origin(Protocol):
    """A place of files. Retries where a retry can help."""

    def download(self, file: ManifestFile, begin: Callable[[], Sink]) -> None:
        """Send a file to a new sink, and to another for each retry. Raises NotFound, CorruptObject, M5Error."""

    def sizes(self, keys: Iterable[str]) -> Mapping[str, int]:
        """Return the sizes in bytes of the `keys` that exist. Asks in parallel."""

    def read(self, key: str) -> bytes:
        """Return a small file. Raises NotFound."""


def key_of_dvc(md5: str) -> str:
    """Return the key of a file in a remote of DVC 3."""
    return f"{md5[:2]}/{md5[2:]}"


def open_origin(remote: RemoteDataset) -> Origin:
    """Return the place of a dataset. Makes no request. Raises MissingExtra."""
    return open_url(remote.url, remote.kind)


def open_url(url: str, kind: str) -> Origin:
    """Return the files at a URL, with keys as the kind of the dataset has them. Raises MissingExtra."""

    def key(file: ManifestFile) -> str:
        return file.path if kind == "s3" else key_of_dvc(file.digest.removeprefix("md5:"))

    return S3Origin(s3_files(url), key) if url.startswith("s3://") else FolderOrigin(Path(url), key)


def s3_files(url: str, needed_by: str = "a dataset in S3") -> "S3Files":
    """Return the files at an s3:// URL. Makes no request. Raises MissingExtra."""
    try:
        from m5ws.store.s3.files import S3Files
    except ModuleNotFoundError as error:
        raise MissingExtra(needed_by, "s3") from error
    return S3Files(url)


class FolderOrigin:
    """Files in a folder of this machine, or of a mounted disk."""

    def __init__(self, folder: Path, key: Callable[[ManifestFile], str]) -> None:
        self._folder, self._key = folder, key

    def download(self, file: ManifestFile, begin: Callable[[], Sink]) -> None:
        location = self._folder / self._key(file)
        sink = begin()
        try:
            with open(location, "rb", buffering=0) as source:
                while block := source.read(_BLOCK_BYTES):
                    sink.write(block)
        except FileNotFoundError as error:
            raise NotFound(f"{location} does not exist") from error
        sink.finish(str(location))

    def sizes(self, keys: Iterable[str]) -> Mapping[str, int]:
        return _sizes(self._sizes_in, keys)

    def _sizes_in(self, folder: str) -> list[tuple[str, int]]:
        try:
            with os.scandir(self._folder / folder) as entries:
                return [(os.path.join(folder, entry.name), entry.stat().st_size) for entry in entries]
        except FileNotFoundError:
            return []

    def read(self, key: str) -> bytes:
        try:
            return (self._folder / key).read_bytes()
        except FileNotFoundError as error:
            raise NotFound(f"{self._folder / key} does not exist") from error


class S3Origin:
    """Files below a prefix in S3."""

    def __init__(self, files: "S3Files", key: Callable[[ManifestFile], str]) -> None:
        self._files, self._key = files, key

    def download(self, file: ManifestFile, begin: Callable[[], Sink]) -> None:
        self._files.download(self._key(file), file.version, file.size_bytes, begin)

    def sizes(self, keys: Iterable[str]) -> Mapping[str, int]:
        return _sizes(self._files.sizes, keys)

    def read(self, key: str) -> bytes:
        content = _Content()
        self._files.download(key, None, 0, content.begin)
        return bytes(content.data)


def _sizes(sizes_in: Callable[[str], list[tuple[str, int]]], keys: Iterable[str]) -> Mapping[str, int]:
    """Return the sizes of the existing `keys`, with one list for each of their folders."""
    wanted = set(keys)
    folders = sorted({os.path.dirname(key) for key in wanted})
    return {key: size for sizes in concurrency.for_each(sizes_in, folders) for key, size in sizes if key in wanted}


class _Content:
    """A small file in memory, whose reader verifies it."""

    def __init__(self) -> None:
        self.data = bytearray()

    def begin(self) -> "_Content":
        self.data.clear()
        return self

    def write(self, block: bytes) -> None:
        self.data += block

    def finish(self, place: str) -> None:
        pass
