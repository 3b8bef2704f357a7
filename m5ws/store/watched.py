"""A store in a directory that notes what it is asked, so that the same questions can be asked again without it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from m5ws import again
from m5ws.ports import Buffer, ObjectStat
from m5ws.repository import FORMAT
from m5ws.store.local import Draft, LocalStore

_OBJECTS = "objects/"
_MOST = 10_000
"""To ask so many things again takes some tens of milliseconds."""


class Watched(LocalStore):
    """`LocalStore` on a store that is there."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._unmoved = True
        self._asked: set[again.Witness] = set()
        self.get(FORMAT)

    def witnesses(self) -> list[list[again.Witness]]:
        """Return what tells whether the store would say the same: files by their stamps, objects by their length.

        There is one way, and none if it was written to, or asked for too much.
        """
        if not self._unmoved:
            return []
        folders = set[str]()
        for _, path in self._asked:
            folder = os.path.dirname(path)
            while len(folder) > len(self.url) and folder not in folders:
                folders.add(folder)
                folder = os.path.dirname(folder)
        return [[*sorted(self._asked), *((again.FOLDER, folder) for folder in sorted(folders))]]

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._note(again.FILE, key)
        return super().get(key, start, length)

    def stat(self, key: str) -> ObjectStat | None:
        self._note(again.OBJECT, key)
        return super().stat(key)

    def names(self, prefix: str) -> tuple[str, ...]:
        folder = prefix.rstrip("/")
        self._note(again.FILE, folder)
        found = super().names(prefix)
        for name in found:
            # A name is there as long as something is below it.
            self._note(again.FILE, f"{folder}/{name}")
        return found

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        # An object that is there besides those that were seen changes no answer: it is named by its content.
        objects = prefix.startswith(_OBJECTS)
        if not objects:
            self._note(again.BELOW, prefix.rpartition("/")[0])
        for found in super().list(prefix):
            if objects:
                self._note(again.OBJECT, found.key)
            yield found

    def descriptor(self, key: str) -> int | None:
        self._note(again.FILE, key)
        return super().descriptor(key)

    def create(self, key: str, data: Buffer) -> None:
        self._unmoved = False
        super().create(key, data)

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        self._unmoved = False
        with super().draft() as draft:
            yield draft

    def publish(self, draft: Draft, key: str) -> None:
        self._unmoved = False
        super().publish(draft, key)

    def delete(self, key: str) -> None:
        self._unmoved = False
        super().delete(key)

    def _note(self, kind: str, key: str) -> None:
        self._unmoved = self._unmoved and len(self._asked) < _MOST
        if self._unmoved:
            self._asked.add((kind, os.path.join(self.url, key)))
