"""Zip files without a byte that is no part of a member: no gaps, no bytes before, between or after them.

A reader of members alone would skip such bytes, and two files that differ there would count as equal.
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

_LOCAL, _LOCAL_BYTES, _ENTRY_BYTES = b"PK\x03\x04", 30, 46
_END_BYTES, _END_64_BYTES = 22, 22 + 20 + 56
"""Bytes of the end of a zip file without a comment, and of the end of a zip file with 64-bit offsets."""
_HAS_DESCRIPTOR, _IS_UTF_8 = 0x08, 0x800
_DESCRIPTORS_BYTES = (0, 12, 16, 20, 24)
"""Lengths of the checksum and sizes after a member: with or without a signature, in 32 or 64 bits."""
_WINDOW_BYTES = 2**16
_SIZES_64 = 1
_PADDING, _FILLER = 0x4246, b"Z"
"""The field with which torch aligns members, and its content."""


def check(file: IO[bytes], archive: zipfile.ZipFile) -> None:
    """Raise ValueError if a byte of the file belongs to no member, or if two members have one name."""
    entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    if len({entry.filename for entry in entries}) != len(entries):
        raise ValueError("two members of the zip file have one name")
    position = 0
    for entry, after in zip(entries, [*(entry.header_offset for entry in entries[1:]), archive.start_dir], strict=True):
        end = _data_end(file, entry)
        spare = (0,) if not entry.flag_bits & _HAS_DESCRIPTOR else _DESCRIPTORS_BYTES
        if entry.header_offset != position or after - end not in spare:
            raise ValueError("bytes between the members of the zip file belong to none of them")
        position = after
    end = position + sum(map(_entry_bytes, entries))
    if file.seek(0, os.SEEK_END) - end not in (_END_BYTES, _END_64_BYTES):
        raise ValueError("bytes after the members of the zip file belong to none of them")


def _data_end(file: IO[bytes], entry: zipfile.ZipInfo) -> int:
    """Return the offset after the data of a member. Raises ValueError for a header with other content."""
    file.seek(entry.header_offset)
    header = file.read(_LOCAL_BYTES)
    if len(header) != _LOCAL_BYTES or not header.startswith(_LOCAL):
        raise ValueError("a member of the zip file has no header")
    name_bytes, extra_bytes = struct.unpack("<HH", header[-4:])
    if file.read(name_bytes) != _name(entry):
        raise ValueError("a member of the zip file has two names")
    _check_fields(file.read(extra_bytes))
    _check_fields(entry.extra)
    if entry.compress_type != zipfile.ZIP_STORED:
        _check_deflated(file, entry)
    return int(entry.header_offset + _LOCAL_BYTES + name_bytes + extra_bytes + entry.compress_size)


def _check_deflated(file: IO[bytes], entry: zipfile.ZipInfo) -> None:
    """Raise ValueError if the compressed data of a member, at the file's position, ends before its length."""
    if entry.compress_type != zipfile.ZIP_DEFLATED:
        raise ValueError("an unknown compression in the zip file")
    stream, left = zlib.decompressobj(-zlib.MAX_WBITS), entry.compress_size
    while left and not stream.eof and (data := file.read(min(left, _WINDOW_BYTES))):
        stream.decompress(data)
        left -= len(data)
    if left or stream.unused_data or not stream.eof:
        raise ValueError("bytes after the compressed data of a member belong to none")


def _check_fields(extra: bytes) -> None:
    """Raise ValueError if the fields of a header contain more than sizes and filler."""
    for kind, content in _fields(extra):
        if kind != _SIZES_64 and not (kind == _PADDING and not content.strip(_FILLER)):
            raise ValueError("a header in the zip file has a field of its own")


def _fields(extra: bytes) -> Iterator[tuple[int, bytes]]:
    while extra:
        kind, size = struct.unpack_from("<HH", extra)
        if len(extra) < 4 + size:
            raise ValueError("a header in the zip file is cut off")
        yield kind, extra[4 : 4 + size]
        extra = extra[4 + size :]


def _entry_bytes(entry: zipfile.ZipInfo) -> int:
    """Return the length of a member's entry in the list of members."""
    return _ENTRY_BYTES + len(_name(entry)) + len(entry.extra) + len(entry.comment)


def _name(entry: zipfile.ZipInfo) -> bytes:
    return entry.orig_filename.encode("utf-8" if entry.flag_bits & _IS_UTF_8 else "cp437")
