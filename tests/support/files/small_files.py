"""A folder of small files that is captured repeatedly, and the packs in its store."""

import os
import random
from collections.abc import Iterable
from pathlib import Path

from m5ws.records.store import Format
from m5ws.records.tree import Pack, Tree
from m5ws.repository.files import trees
from m5ws.repository.files.index import Index, Written
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.materialise import materialise
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.faults.settling import settle
from tests.support.records import planted

FORM = Format(pack_bytes=8192, small_bytes=1024, chunk_bytes=1024)


class Workspace:
    """A folder of small files, a store, and an index. `write` captures them like `snapshot`."""

    def __init__(self, root: Path, form: Format = FORM) -> None:
        self.files = root / "files"
        self.files.mkdir(parents=True)
        self.repo = Repository.create(LocalStore(root / "store", durable=False), form)
        self.index = root / "index"

    def write(self, *, known: bool = True) -> Written:
        settle(self.files)
        if not known:
            return trees.write_tree(self.repo.objects, self._sources())
        with Index(self.index) as index:
            return trees.write_tree(self.repo.objects, self._sources(), index)

    def fill(self, draw: random.Random, names: Iterable[int], size: int = 300) -> None:
        for name in names:
            (self.files / f"{name:04d}").write_bytes(draw.randbytes(draw.randrange(1, size)))

    def packs(self, written: Written) -> tuple[Pack, ...]:
        return self.repo.objects.get_record(written.digest, Tree).packs

    def content(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.files.iterdir()}

    def _sources(self) -> list[SourceFile]:
        return planted.sources(self.files, os.listdir(self.files))


def read(repo: Repository, written: Written, target: Path) -> dict[str, bytes]:
    """Return a tree's files, read from the store alone."""
    materialise(repo.objects, [trees.load(repo.objects, written.digest)], target)
    return {path.name: path.read_bytes() for path in target.iterdir()}
