"""Notes of the paths and hosts that the processes of a run use: one append-only file for all processes of a node.

The ranks and their forks write it, and the process that supervises them reads it. A note is one `write(2)` of its kind,
its text and a zero byte, so notes of several processes do not mix.
"""

import os
from collections.abc import Iterator
from pathlib import Path

NAME = "reads"
"""Name of the file in the folder of spools."""


def append(path: str, kind: str, text: str = "") -> None:
    """Write one note. Raises OSError.

    The open is an event of this process's own audit hook, which knows a path as text. The file is not kept open: a
    script that closes descriptors may get its number for a file of its own.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, os.fsencode(f"{kind}{text}\0"))
    finally:
        os.close(descriptor)


class NoteReader:
    """Follows the notes of a node."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> Iterator[tuple[str, str]]:
        """Yield the kind and text of each note that became complete since the last call."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\0") + 1]
        self._offset += len(whole)
        for note in whole.split(b"\0")[:-1]:
            text = os.fsdecode(note)
            yield text[:1], text[1:]
