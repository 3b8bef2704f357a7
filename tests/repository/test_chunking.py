"""Memory of chunks is reused, but never while it is referenced."""

import ctypes
import os
from pathlib import Path

from m5ws.repository.files.chunking import Memory, read_chunks


def test_memory_that_was_given_back_is_used_again_whatever_the_size_asked_for() -> None:
    memory = Memory()
    first = memory.take(100)
    whole = first.obj
    memory.give_back(first)
    second = memory.take(60)
    assert second.obj is whole and second.nbytes == 60
    memory.give_back(second)
    assert memory.take(100).obj is whole


def test_memory_that_is_too_small_is_not_taken() -> None:
    memory = Memory()
    memory.give_back(memory.take(10))
    assert memory.take(11).nbytes == 11


def test_memory_that_somebody_still_looks_at_is_given_to_nobody() -> None:
    memory = Memory()
    view = memory.take(4)
    view[:] = b"kept"
    seen = memoryview(view)
    part = view[1:]
    memory.give_back(view)
    other = memory.take(4)
    other[:] = b"new!"
    assert (bytes(seen), bytes(part)) == (b"kept", b"ept")


def test_memory_whose_view_is_exported_is_given_to_nobody() -> None:
    """Keeps a reference, like a client that is still sending after a cancelled upload."""
    memory = Memory()
    view = memory.take(4)
    view[:] = b"kept"
    exported = (ctypes.c_char * 4).from_buffer(view)
    memory.give_back(view)
    memory.take(4)[:] = b"new!"
    assert exported.raw == b"kept"


def test_chunks_in_memory_that_is_used_again_are_a_file_s(tmp_path: Path) -> None:
    path, memory, found = tmp_path / "file", Memory(), []
    data = os.urandom(1000)
    path.write_bytes(data)
    with open(path, "rb", buffering=0) as file:
        for chunk in read_chunks(file.fileno(), 64, memory):
            found.append(bytes(chunk))
            memory.give_back(chunk)
    assert b"".join(found) == data
