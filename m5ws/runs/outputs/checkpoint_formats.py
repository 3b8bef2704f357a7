"""Checkpoint files that a process did not write to their end, found by content and exact length.

Known formats are zip files (PyTorch, NumPy's `.npz`), PyTorch's format before version 1.6, `.npy` and safetensors. A
name decides only if a file is shorter than the bytes that identify its format.
"""

import ast
import json
import math
import os
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

Ending = Literal["complete", "cut"]

_ZIP = b"PK\x03\x04"
_NPY = b"\x93NUMPY"
LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
"""The first bytes of a file in PyTorch's format before version 1.6."""
_MAGIC = (_ZIP, _NPY, LEGACY)
BEGIN_BYTES = len(LEGACY)
"""Number of bytes that identify a format."""
_SHORTEST = 3
"""A file of at least so many bytes is the begin of a known format if these bytes are."""
_SUFFIXES = {".pt", ".pth", ".bin", ".ckpt", ".npz", ".npy", ".safetensors"}
_LENGTH = struct.Struct("<Q")
_HEADER_BYTES = 100_000_000
"""Upper bound of the header of a safetensors file, by its specification."""

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_COMMENT_BYTES = 0xFFFF
_PICKLE_BYTES = 100_000_000
"""A larger pickle in a zip file is not read."""


def ending(path: Path) -> Ending | None:
    """Return the state of a checkpoint file's end; None for another format, and for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            return _ending(file, os.fstat(file.fileno()).st_size, path.suffix.lower())
    except OSError:
        return None


def is_checkpoint(begin: bytes) -> bool:
    """Return True if a file that begins with these bytes, `BEGIN_BYTES` or all, has a known format."""
    return begin.startswith(_MAGIC) or _is_safetensors(begin)


def _is_safetensors(begin: bytes) -> bool:
    length = begin[: _LENGTH.size]
    return begin[_LENGTH.size :].startswith(b"{") and _LENGTH.unpack(length)[0] <= _HEADER_BYTES


def _ending(file: BinaryIO, size: int, suffix: str) -> Ending | None:
    begin = file.read(BEGIN_BYTES)
    checks: dict[bytes, Callable[[BinaryIO, int], bool | None]] = {
        _ZIP: _is_whole_zip,
        _NPY: _is_whole_npy,
        LEGACY: _is_whole_legacy,
    }
    whole: bool | None
    for magic, check in checks.items():
        if begin.startswith(magic):
            whole = check(file, size)
            break
    else:
        if _is_safetensors(begin):
            whole = _is_whole_safetensors(file, size)
        else:
            whole = None if _is_other(begin, suffix) else False
    return None if whole is None else "complete" if whole else "cut"


def _is_other(begin: bytes, suffix: str) -> bool:
    """Return False if a file without the bytes that identify a format is the begin of a checkpoint file."""
    if suffix == ".safetensors":
        return len(begin) > _LENGTH.size
    is_begin = any(magic.startswith(begin) for magic in _MAGIC)
    return not (is_begin and (len(begin) >= _SHORTEST or suffix in _SUFFIXES))


# --- zip -------------------------------------------------------------------------------------------


def _is_whole_zip(file: BinaryIO, size: int) -> bool:
    """Return True if a file is a zip file, or several in sequence, as torch.distributed.checkpoint writes tensors.

    Each ends with a directory that fits the file's length. A file that was cut behind a zip file inside of it does not.
    """
    end: int | None = size
    count = 0
    while end:
        end = _begin_of_zip(file, end)
        count += 1
    return end == 0 and (count > 1 or _has_all_data(file))


def _begin_of_zip(file: BinaryIO, end: int) -> int | None:
    """Return the begin of the zip file that ends at `end`; None if there is none.

    https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
    """
    start = max(0, end - _END.size - _COMMENT_BYTES)
    for first in (max(0, end - _END.size), start):
        tail = _read(file, first, end)
        place = len(tail)
        while (place := tail.rfind(b"PK\x05\x06", 0, place)) >= 0:
            if place + _END.size <= len(tail):
                *_, comment = _END.unpack_from(tail, place)
                if place + _END.size + comment == len(tail):
                    return _begin_of_directory(file, first + place)
    return None


def _begin_of_directory(file: BinaryIO, place: int) -> int | None:
    """Return the begin of the zip file whose end record is at `place`; None if its directory is not before it."""
    *_, length, offset, _ = _END.unpack(_read(file, place, place + _END.size))
    directory_end = place
    before = _LOCATOR.size + _END_64.size
    if place >= before and (record := _read(file, place - before, place))[_END_64.size :].startswith(b"PK\x06\x07"):
        if not record.startswith(b"PK\x06\x06"):
            return None
        *_, length, offset = _END_64.unpack_from(record)
        directory_end = place - before
    begin = directory_end - length - offset
    if begin < 0 or _read(file, begin, begin + len(_ZIP)) != _ZIP:
        return None
    directory = _read(file, begin + offset, directory_end)
    return begin if directory.startswith(b"PK\x01\x02") and not _is_cut_save(directory) else None


def _is_cut_save(directory: bytes) -> bool:
    """Return True for the directory of a file in which torch.save was interrupted by an exception.

    Its writer closes the file in any case. The pickle is missing then, as it is in files of torch.export.
    """
    return b".data/serialization_id" in directory and not any(
        name in directory for name in (b"/data.pkl", b"/archive_format")
    )


def _has_all_data(file: BinaryIO) -> bool:
    """Return False if a storage of a PyTorch file, or the end of an array of an `.npz`, is missing.

    torch.save and numpy.savez close the file after an exception. Other zip files, and pickles that cannot be read
    without their classes, are not judged.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            sizes = {member.filename: member.file_size for member in archive.infolist()}
            if all(name.endswith(".npy") for name in sizes):
                stored = sum(member.compress_size for member in archive.infolist())
                return stored < archive.start_dir and all(_is_whole_array(archive, *member) for member in sizes.items())
            return _has_all_storages(archive, sizes)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, *_OF_PICKLES):
        return True


def _is_whole_array(archive: zipfile.ZipFile, name: str, size: int) -> bool:
    with archive.open(name) as member:
        return size > 0 and _is_whole_npy(cast(BinaryIO, member), size) is not False


def _has_all_storages(archive: zipfile.ZipFile, sizes: dict[str, int]) -> bool:
    """Return True if a PyTorch file has each storage of its pickle, in its whole length if its type is known.

    `sizes` has the bytes of each member. Raises the errors of zipfile and pickle.
    """
    prefix = next(iter(sizes)).partition("/")[0]
    pickled = f"{prefix}/data.pkl"
    if not 0 < sizes.get(pickled, 0) <= _PICKLE_BYTES:
        return True
    with archive.open(pickled) as member:
        reader = _Reader(cast(BinaryIO, member))
        reader.load()
    return all(
        sizes.get(f"{prefix}/data/{key}", -1) >= count * _ELEMENT_BYTES.get(kind, 0)
        for key, (kind, count) in reader.storages.items()
    )


def _read(file: BinaryIO, first: int, end: int) -> bytes:
    file.seek(first)
    return file.read(end - first)


# --- NumPy, safetensors ----------------------------------------------------------------------------

_KIND = re.compile(r"[<>|=]?([biufcmMSUV])([0-9]+)")


def _is_whole_npy(file: BinaryIO, size: int) -> bool | None:
    """Return False if an array of a file, which may have several, is not complete; None if its length is unknown.

    https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """
    place = 0
    while place < size:
        begin = _read(file, place, place + 12)
        if not begin.startswith(_NPY[: len(begin)]):
            return True
        width = 2 if begin[6:7] == b"\x01" else 4
        header = place + 8 + width + int.from_bytes(begin[8 : 8 + width], "little")
        if len(begin) < 8 + width or header > size:
            return False
        try:
            described = ast.literal_eval(_read(file, place + 8 + width, header).decode("utf-8"))
            place = header + _item_bytes(described["descr"]) * math.prod(described["shape"])
        except (ValueError, SyntaxError, LookupError, TypeError, AttributeError, RecursionError):
            return None  # such as an array of objects, which is a pickle
    return place == size


def _item_bytes(kind: Any) -> int:
    """Return the size of an array's item, from its type in a header. Raises AttributeError, LookupError, TypeError."""
    if isinstance(kind, tuple):
        return _item_bytes(kind[0]) * math.prod(kind[1])
    if isinstance(kind, list):
        return sum(_item_bytes(field[1]) * math.prod(field[2] if len(field) > 2 else ()) for field in kind)
    letter, number = _KIND.match(kind).groups()  # type: ignore[union-attr]
    return int(number) * (4 if letter == "U" else 1)


def _is_whole_safetensors(file: BinaryIO, size: int) -> bool | None:
    """Return True if a safetensors file is as long as its header requires; None for another format.

    https://github.com/huggingface/safetensors#format
    """
    (length,) = _LENGTH.unpack(_read(file, 0, _LENGTH.size))
    begin = _LENGTH.size + length
    if begin > size:
        return False
    try:
        header = json.loads(_read(file, _LENGTH.size, begin))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        return bool(size == begin + max(ends, default=0))
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return None


# --- PyTorch before 1.6 ----------------------------------------------------------------------------

_ELEMENT_BYTES = {
    "DoubleStorage": 8,
    "FloatStorage": 4,
    "HalfStorage": 2,
    "BFloat16Storage": 2,
    "LongStorage": 8,
    "IntStorage": 4,
    "ShortStorage": 2,
    "CharStorage": 1,
    "ByteStorage": 1,
    "BoolStorage": 1,
    "ComplexDoubleStorage": 16,
    "ComplexFloatStorage": 8,
    "QInt8Storage": 1,
    "QUInt8Storage": 1,
    "QInt32Storage": 4,
    "UntypedStorage": 1,
}


_OF_PICKLES = (
    *(pickle.UnpicklingError, struct.error, EOFError, ValueError, LookupError, TypeError, AttributeError),
    *(OverflowError, MemoryError, RecursionError),
)
"""Errors of incomplete pickles."""


class _Anything:
    """Stands for each class of a pickle, so that none is imported."""

    def __new__(cls, *_: object, **__: object) -> "_Anything":
        return object.__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setitem__(self, _: object, __: object) -> None:
        pass

    def __setstate__(self, _: object) -> None:
        pass

    def append(self, _: object) -> None:
        pass

    def extend(self, _: object) -> None:
        pass


class _Reader(pickle.Unpickler):
    """Reads a pickle without running code of it. `storages` has each storage's class, by name, and number of items."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.storages: dict[object, tuple[str, int]] = {}

    def find_class(self, module: str, name: str) -> type:
        return type(name, (_Anything,), {"__module__": module})

    def persistent_load(self, pid: Any) -> object:
        if pid[0] == "storage":
            self.storages[pid[2]] = pid[1].__name__, pid[4]
        return pid[1] if pid[0] == "module" else _Anything()


def _is_whole_legacy(file: BinaryIO, size: int) -> bool | None:
    """Return True if a file of `torch.save` before version 1.6 is complete; None for an unknown class of storages.

    https://github.com/pytorch/pytorch/blob/main/torch/serialization.py (`_legacy_save`)
    """
    file.seek(0)
    try:
        for _ in range(3):
            _Reader(file).load()
        state = _Reader(file)
        state.load()
        keys = _Reader(file).load()
        for key in keys:
            if (width := _ELEMENT_BYTES.get(state.storages[key][0])) is None:
                return None
            (count,) = _LENGTH.unpack(file.read(_LENGTH.size))
            file.seek(count * width, os.SEEK_CUR)
        return file.tell() == size
    except _OF_PICKLES:
        return False
