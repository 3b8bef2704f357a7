"""A large file as chunks of a fixed size, each in memory of its own.

What is hashed must be what is sent, so a chunk is read once, into memory that nobody else writes to: never mapped from
the file.
"""

import os
from collections.abc import Iterator


def read_chunks(descriptor: int, chunk_bytes: int) -> Iterator[memoryview]:
    """Yield a file's chunks from where it stands: all of `chunk_bytes` but the last, in a file that holds still."""
    while True:
        left = os.fstat(descriptor).st_size - os.lseek(descriptor, 0, os.SEEK_CUR)
        chunk = _filled(descriptor, min(chunk_bytes, left)) if left > 0 else memoryview(b"")
        if not chunk:
            return
        yield chunk


def _filled(descriptor: int, size: int) -> memoryview:
    """Read `size` bytes, or as many as there are; one call may return fewer."""
    view, done = memoryview(bytearray(size)), 0
    while done < size and (count := os.readv(descriptor, [view[done:]])):
        done += count
    return view[:done]
