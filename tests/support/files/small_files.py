"""A folder of small files that is captured repeatedly, and the packings in its store."""

import os
import random
from collections.abc import Iterable
from pathlib import Path

from m5ws.records.base import Digest
from m5ws.records.snapshot import Annotation
from m5ws.records.store import Format
from m5ws.records.tree import Pack, Packing
from m5ws.repository import bindings
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
            return trees.write_tree(self.repo.objects, self.repo.locations, self._sources())
        with Index(self.index) as index:
            return trees.write_tree(self.repo.objects, self.repo.locations, self._sources(), index)

    def fill(self, draw: random.Random, names: Iterable[int], size: int = 300) -> None:
        for name in names:
            (self.files / f"{name:04d}").write_bytes(draw.randbytes(draw.randrange(1, size)))

    def packing(self, written: Written) -> Packing:
        assert written.packing is not None
        return self.repo.objects.get_record(written.packing, Packing)

    def content(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.files.iterdir()}

    def irreplaceable(self, written: Written) -> Pack:
        """Return a pack that cannot be made again, because some of its files no longer exist."""
        live = {bytes.fromhex(self.repo.objects.digest(data)) for data in self.content().values()}
        return next(pack for pack in self.packing(written).packs if not live.issuperset(pack.names))

    def _sources(self) -> list[SourceFile]:
        return planted.sources(self.files, os.listdir(self.files))


def read(repo: Repository, written: Written, target: Path) -> dict[str, bytes]:
    """Return a tree's files, read by a process that has its packing alone."""
    fresh = Repository.open(repo.store)
    materialise(
        fresh.objects,
        fresh.locations,
        [trees.located(fresh.objects, fresh.locations, written.digest, written.packing)],
        target,
    )
    return {path.name: path.read_bytes() for path in target.iterdir()}


def annotate(repo: Repository, snapshot: Digest, packings: dict[Digest, Digest], when: int = 1) -> None:
    """Annotate a snapshot with `packings` of its small files."""
    annotation = Annotation(created_s=float(when), packings=packings)
    bindings.create(repo.store, f"snapshots/{snapshot}/{when:014d}-00000000", annotation)
