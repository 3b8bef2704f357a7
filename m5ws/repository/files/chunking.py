"""A large file as chunks of a fixed size, each in its own memory.

The hashed bytes must be the uploaded bytes. So a chunk is read once, into private memory, and the file is never mapped.
"""

import os
from collections.abc import Iterator
from contextlib import suppress


class Memory:
    """Reusable memory for chunks, since fresh memory is paged in and cleared each time. Thread-safe."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """Return `size` bytes with undefined content."""
        while self._free:
            try:
                free = self._free.pop()
            except IndexError:
                break
            if len(free) >= size and _unseen(free):
                return memoryview(free)[:size]
        return memoryview(bytearray(size))

    def give_back(self, view: memoryview) -> None:
        """Take back the result of `take`. Memory that is still referenced is not reused."""
        whole = view.obj
        with suppress(BufferError):
            view.release()
            if isinstance(whole, bytearray):
                self._free.append(whole)


def read_chunks(descriptor: int, chunk_bytes: int, memory: Memory | None = None) -> Iterator[memoryview]:
    """Yield a file's chunks from its current position. Each but the last has `chunk_bytes`, unless the file changes."""
    memory = memory or Memory()
    while True:
        left = os.fstat(descriptor).st_size - os.lseek(descriptor, 0, os.SEEK_CUR)
        chunk = _filled(descriptor, memory.take(min(chunk_bytes, left))) if left > 0 else memoryview(b"")
        if not chunk:
            return
        yield chunk


def _filled(descriptor: int, view: memoryview) -> memoryview:
    """Read until `view` is full or the file ends; one call may return fewer bytes."""
    done = 0
    while done < view.nbytes and (count := os.readv(descriptor, [view[done:]])):
        done += count
    return view[:done]


def _unseen(memory: bytearray) -> bool:
    """Return True if nothing refers to these bytes. A client may keep a reference after a failed upload."""
    try:
        # Python refuses to resize memory that is exported. Removing and appending one byte moves nothing.
        memory.append(memory.pop())
    except BufferError:
        return False
    return True
