"""A chunk from a file of this machine's disk into another file, verified.

A clone (FICLONE, where the file system shares blocks: XFS, Btrfs, bcachefs) costs no copy and no disk, and a later
write to either file leaves the other as it is. Otherwise bytes are read, hashed and written a megabyte at a time,
so that they are hashed and written from the processor's cache. `copy_file_range` would copy once more than that,
for what it copies must be read to be verified.

Never a hard link: it would make the run's file and the store's object one file, which a process of root may write
to whatever its mode is, and whose mode and times are both files' too.
"""

import fcntl
import os
import struct

from m5ws.records.tree import Slice
from m5ws.repository.objects import Objects
from m5ws.store.interface import Buffer

_PIECE_BYTES = 1 << 20
_FICLONERANGE = 0x4020940D
"""_IOW(0x94, 13, struct file_clone_range), ioctl_ficlonerange(2)."""


def copy(objects: Objects, source: int, part: Slice, target: int, position: int) -> bool:
    """Copy an object, open as `source`, to `position` of the open file `target`; return whether it is `part`'s bytes.

    What was copied of an object that is not is to be written over.
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


def _clone(source: int, target: int, position: int) -> bool:
    """Share the blocks of all of `source`, if the file system can; most cannot, and say so at once."""
    try:
        fcntl.ioctl(target, _FICLONERANGE, struct.pack("qQQQ", source, 0, 0, position))
    except OSError:
        return False
    return True
