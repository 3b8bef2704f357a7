"""A large file as chunks of a fixed size, each in memory that is its own until it is given back.

What is hashed must be what is sent, so a chunk is read once, into memory that nobody else writes to: never mapped from
the file.
"""

import os
from collections.abc import Iterator
from contextlib import suppress


class Memory:
    """Memory for chunks, used again: fresh memory is paged in and cleared each time. Safe to share by threads."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """Return `size` bytes, of any content."""
        while self._free:
            try:
                found = self._free.pop()
            except IndexError:
                break
            if len(found) >= size and _unseen(found):
                return memoryview(found)[:size]
        return memoryview(bytearray(size))

    def give_back(self, view: memoryview) -> None:
        """Take back what `take` returned. Memory that somebody still looks at is not given to anybody else."""
        whole = view.obj
        with suppress(BufferError):
            view.release()
            if isinstance(whole, bytearray):
                self._free.append(whole)


def read_chunks(descriptor: int, chunk_bytes: int, memory: Memory | None = None) -> Iterator[memoryview]:
    """Yield a file's chunks from where it stands: all of `chunk_bytes` but the last, in a file that holds still."""
    memory = memory or Memory()
    while True:
        left = os.fstat(descriptor).st_size - os.lseek(descriptor, 0, os.SEEK_CUR)
        chunk = _filled(descriptor, memory.take(min(chunk_bytes, left))) if left > 0 else memoryview(b"")
        if not chunk:
            return
        yield chunk


def _filled(descriptor: int, view: memoryview) -> memoryview:
    """Read as much as `view` holds, or as there is; one call may return fewer."""
    done = 0
    while done < view.nbytes and (count := os.readv(descriptor, [view[done:]])):
        done += count
    return view[:done]


def _unseen(memory: bytearray) -> bool:
    """Return whether nothing refers to these bytes: a client may hold on to what it sent, after it gave up."""
    try:
        # Python refuses to resize what is exported; to make it a byte shorter and longer again moves nothing.
        memory.append(memory.pop())
    except BufferError:
        return False
    return True
