"""Parts of a file of any known format. gzip, tar and zip files have those of their members.

Times, owners, modes and the compression of members are not among the parts. An archive that expands beyond a bound, or
has an archive inside of it, is compared as bytes.
"""

import gzip
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

from m5ws.reproduce.outputs import tensor_files, text_files
from m5ws.reproduce.outputs.named_values import unique
from m5ws.reproduce.outputs.tensor_files import FileParts

SUFFIXES = (".tar", ".tgz", ".zip")
_TEXT_BYTES = 2**26
_EXPANDED_BYTES = 2**30
_MEMBERS = 10**4
_WINDOW_BYTES = 2**20


def read(name: str, file: IO[bytes]) -> FileParts:
    """Return the parts of a file, and of an archive those of its members. Raises one of `tensor_files.UNREADABLE`."""
    with _expanded(name, file) as (inner, content):
        return _archive(inner, content) if inner.endswith(SUFFIXES) else _plain(inner, content)


def has_floats(name: str, file: IO[bytes]) -> bool:
    """As `tensor_files.has_floats`; of an archive, if one of its members has them."""
    with _expanded(name, file) as (inner, content):
        if inner.endswith(SUFFIXES):
            return tensor_files.are_floats(_archive(inner, content))
        return inner.endswith(tensor_files.SUFFIXES) and tensor_files.has_floats(inner, content)


@contextmanager
def _expanded(name: str, file: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield a file without gzip's compression, and its name. Raises ValueError."""
    try:
        if not name.endswith((".gz", ".tgz")):
            yield name, file
            return
        with tempfile.TemporaryFile() as expanded:
            _copy(cast(IO[bytes], gzip.GzipFile(fileobj=file)), expanded, _EXPANDED_BYTES)
            yield name.removesuffix(".gz") if name.endswith(".gz") else f"{name}.tar", expanded
    except (gzip.BadGzipFile, tarfile.TarError) as error:
        raise ValueError(str(error)) from error


def _plain(name: str, file: IO[bytes]) -> FileParts:
    if name.endswith(tensor_files.SUFFIXES):
        return tensor_files.read(name, file)
    data = file.read(_TEXT_BYTES + 1)
    if len(data) > _TEXT_BYTES:
        raise ValueError("too long for a comparison by keys")
    return FileParts(tensors={}, values=text_files.values(name, data))


def _archive(name: str, file: IO[bytes]) -> FileParts:
    tensors, values = list[tuple[str, str]](), list[tuple[str, str]]()
    left = _EXPANDED_BYTES
    for count, (member, stream) in enumerate(_members(name, file)):
        if count >= _MEMBERS:
            raise ValueError("too many members")
        with tempfile.TemporaryFile() as expanded:
            left -= _copy(stream, expanded, left)
            parts = _member(member, expanded)
        tensors += [(f"{member}.{key}", value) for key, value in parts.tensors.items()]
        values += [(f"{member}.{key}", value) for key, value in parts.values.items()]
    return FileParts(tensors=unique(tensors), values=unique(values))


def _members(name: str, file: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name and content of each file. Raises ValueError for a link or a device."""
    if name.endswith(".zip"):
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    with archive.open(entry) as stream:
                        yield entry.filename, stream
        return
    with tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            if not member.isfile() and not member.isdir():
                raise ValueError("a link or a device")
            if (content := tar.extractfile(member)) is not None:
                yield member.name, content


def _member(name: str, file: IO[bytes]) -> FileParts:
    """Return the parts of a member. A member of an unknown format has the digest of its bytes."""
    try:
        return _plain(name, file)
    except tensor_files.UNREADABLE:
        file.seek(0)
        return FileParts(tensors={}, values={"bytes": tensor_files.digest_stream(file)})


def _copy(source: IO[bytes], target: IO[bytes], most_bytes: int) -> int:
    """Copy a stream to an empty file and return its length. Raises ValueError if it is longer than `most_bytes`."""
    size_bytes = 0
    while data := source.read(_WINDOW_BYTES):
        size_bytes += len(data)
        if size_bytes > most_bytes:
            raise ValueError("it expands beyond the bound")
        target.write(data)
    target.seek(0)
    return size_bytes
