"""Copies a chunk from a file on this machine's disk into another file, and verifies it.

A clone (FICLONE, on file systems that share blocks: XFS, Btrfs, bcachefs) needs no copy and no disk space, and a later
write to either file does not affect the other file. Otherwise bytes are read, hashed and written a megabyte at a time,
from the processor's cache. `copy_file_range` would be one copy more, because its data must be read for verification.

Never a hard link: the run's file and the store's object would be one file, with a shared mode and times. A process of
root could write to it whatever its mode.
"""

import fcntl
import os
import struct
import tempfile
from pathlib import Path

from m5ws.records.tree import Slice
from m5ws.repository.objects import Objects
from m5ws.store.interface import Buffer

_PIECE_BYTES = 1 << 20
_FICLONERANGE = 0x4020940D
"""_IOW(0x94, 13, struct file_clone_range), ioctl_ficlonerange(2)."""


def copy(objects: Objects, source: int, part: Slice, target: int, position: int) -> bool:
    """Copy an object, open as `source`, to `position` of the open file `target`. Return True if it has the bytes of
    `part`.

    Otherwise the caller must overwrite the copied bytes.
    """
    if os.fstat(source).st_size != part.size_bytes:
        return False
    cloned = _clone(source, target, position)
    hasher = objects.hasher()
    buffer = memoryview(bytearray(min(_PIECE_BYTES, part.size_bytes)))
    done = 0
    while count := os.preadv(source, [buffer], done):
        piece = buffer[:count]
        hasher.update(piece)
        if not cloned:
            write(target, piece, position + done)
        done += count
    return done == part.size_bytes and hasher.hexdigest() == part.digest


def write(target: int, data: Buffer, position: int) -> None:
    """Write all of `data` at `position` of an open file; os.pwrite alone may write less."""
    view = memoryview(data)
    while view:
        count = os.pwrite(target, view, position)
        view, position = view[count:], position + count


def shares_blocks(folder: Path) -> bool:
    """Return True if clones in a folder need no space. Tried with two files without names."""
    with tempfile.TemporaryFile(dir=folder) as source, tempfile.TemporaryFile(dir=folder) as target:
        source.write(b"block")
        source.flush()
        return _clone(source.fileno(), target.fileno(), 0)


def _clone(source: int, target: int, position: int) -> bool:
    """Share all blocks of `source`, if the file system can. Most cannot, and fail at once."""
    try:
        fcntl.ioctl(target, _FICLONERANGE, struct.pack("qQQQ", source, 0, 0, position))
    except OSError:
        return False
    return True
