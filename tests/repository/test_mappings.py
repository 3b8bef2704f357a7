"""A file written through a mapping never counts as unchanged, whatever its stamps are."""

import mmap
import os
import random
from pathlib import Path

import pytest

from m5ws.repository.files import mappings, trees
from m5ws.repository.files.index import Index
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.repository import Repository
from tests.support.faults import settling

_SIZE = 3 * mmap.PAGESIZE


class _Mapped:
    """A file and its mappings, with one random operation at a time."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._random = random.Random(seed)
        self._open: list[mmap.mmap] = []
        path.write_bytes(bytes(_SIZE))

    def act(self) -> str:
        kind = self._random.choice(["map", "unmap", "write", "write", "write", "flush", "plain", "none"])
        mapped = self._random.choice(self._open) if self._open else None
        if kind == "map" or (mapped is None and kind in ("unmap", "write", "flush")):
            with open(self._path, "r+b") as file:
                self._open.append(mmap.mmap(file.fileno(), 0))
        elif kind == "plain":
            with open(self._path, "r+b") as file:
                file.write(self._random.randbytes(1))
        elif mapped is not None and kind == "unmap":
            self._open.remove(mapped)
            mapped.close()
        elif mapped is not None and kind == "flush":
            mapped.flush()
        elif mapped is not None and kind == "write":
            mapped[self._random.randrange(_SIZE)] = self._random.randrange(256)
        return kind

    def close(self) -> None:
        while self._open:
            self._open.pop().close()


@pytest.mark.parametrize("seed", range(2))
def test_a_tree_that_is_written_again_has_the_bytes_of_now(repo: Repository, tmp_path: Path, seed: int) -> None:
    path = tmp_path / "data" / "file"
    path.parent.mkdir()
    mapped = _Mapped(path, seed)
    files = [SourceFile(path=b"file", location=path)]
    done = []
    try:
        for _ in range(20):
            done.append(mapped.act())
            settling.settle(path.parent)
            with Index(tmp_path / "index") as index:
                found = trees.write_tree(repo.objects, files, index)
            assert found.digest == trees.write_tree(repo.objects, files).digest, done
    finally:
        mapped.close()


def test_only_mappings_that_can_be_written_to_and_are_shared_count(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("written", "read", "private")]
    for path in paths:
        path.write_bytes(bytes(mmap.PAGESIZE))
    opened = [os.open(path, os.O_RDWR) for path in paths]
    ways = [(mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE), (mmap.MAP_SHARED, mmap.PROT_READ)]
    ways += [(mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)]
    held = [mmap.mmap(file, 0, flags, prot) for file, (flags, prot) in zip(opened, ways, strict=True)]
    found = mappings.inodes()
    assert [path.stat().st_ino in found for path in paths] == [True, False, False]
    for file, one in zip(opened, held, strict=True):
        one.close()
        os.close(file)
    assert paths[0].stat().st_ino not in mappings.inodes()
