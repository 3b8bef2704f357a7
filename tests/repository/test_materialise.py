"""Materialised files are exact, for every shape of file and kind of store. No wrong byte is ever accepted."""

import os
import random
from pathlib import Path

import pytest

from m5ws.errors import CorruptObject
from m5ws.records.store import Format
from m5ws.records.tree import Tree
from m5ws.repository import concurrency
from m5ws.repository.files import materialise, trees, verified_copy
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.objects import key
from m5ws.repository.repository import Repository
from m5ws.store.cache.cache import CachedStore
from m5ws.store.interface import ObjectStore
from m5ws.store.local import LocalStore
from tests.conftest import loud_skip
from tests.support.faults import troubles
from tests.support.records import planted
from tests.support.stores.counting_store import CountingStore

_SMALL = Format(chunk_bytes=65536, file_chunk_bytes=65536, pack_bytes=8192, small_bytes=16384)
_SIZES = (0, 1, 100, 5000, 16383, 16384, 65535, 65536, 65537, 3 * 65536, 10 * 65536 + 17)


def _written(repo: Repository, source: Path) -> tuple[Tree, dict[str, bytes]]:
    """Capture files of every size, some in folders. Return their tree and contents."""
    drawn = random.Random(1)
    contents = {f"{'deep/er/' * (number % 2)}{size}": drawn.randbytes(size) for number, size in enumerate(_SIZES)}
    return trees.load(repo.objects, planted.tree(repo, source, contents)), contents


def _read(target: Path) -> dict[str, bytes]:
    return {path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*") if path.is_file()}


def _stores(base: Path) -> dict[str, ObjectStore]:
    """The store in `base`: as a directory, remote, and through a cache."""
    directory = LocalStore(base / "store")
    far = CountingStore(directory)
    return {
        "directory": directory,
        "far": far,
        "cache": CachedStore(far, base / "cache", 2**30),
        "cache-too-small": CachedStore(far, base / "cache", 1000),
    }


@pytest.mark.parametrize("kind", ["directory", "far", "cache", "cache-too-small"])
def test_files_of_every_size_are_restored_from_every_store(tmp_path: Path, kind: str) -> None:
    repo = Repository.create(_stores(tmp_path)[kind], _SMALL)
    tree, contents = _written(repo, tmp_path / "source")
    for name in ("first", "again"):
        materialise.materialise(repo.objects, [tree], tmp_path / name)
        assert _read(tmp_path / name) == contents
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / name).rglob("*") if path.is_file()} == {0o444}


def test_the_umask_does_not_change_the_mode_of_restored_files(repo: Repository, tmp_path: Path) -> None:
    tree, _ = _written(repo, tmp_path / "source")
    before = os.umask(0o077)
    try:
        for read_only, expected in ((True, 0o444), (False, 0o644)):
            target = tmp_path / str(expected)
            materialise.materialise(repo.objects, [tree], target, read_only=read_only)
            assert {path.stat().st_mode & 0o777 for path in target.rglob("*") if path.is_file()} == {expected}
    finally:
        os.umask(before)


def test_a_second_restore_reads_only_the_cache(tmp_path: Path) -> None:
    far = CountingStore(LocalStore(tmp_path / "store"))
    tree, contents = _written(Repository.create(far, _SMALL), tmp_path / "source")
    repo = Repository.open(CachedStore(far, tmp_path / "cache", 2**30))
    materialise.materialise(repo.objects, [tree], tmp_path / "first")
    far.gone = True
    materialise.materialise(repo.objects, [tree], tmp_path / "second")
    assert _read(tmp_path / "second") == contents


def test_restoring_many_small_files_reads_few_packs(tmp_path: Path) -> None:
    far = CountingStore(LocalStore(tmp_path / "store"))
    repo = Repository.create(far)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(300):
        (source / f"{number:03d}").write_bytes(b"%d" % number * 20)
    files = [SourceFile(path=path.name.encode(), location=path) for path in source.iterdir()]
    tree = trees.load(repo.objects, trees.write_tree(repo.objects, files).digest)
    far.gets.clear()
    materialise.materialise(repo.objects, [tree], tmp_path / "target")
    assert sorted(far.gets) == sorted({key(entry.parts[0].object) for entry in tree.entries})
    assert len(far.gets) < 30


@pytest.mark.parametrize("kind", ["directory", "far"])
def test_every_damaged_object_is_named_in_an_error(tmp_path: Path, kind: str) -> None:
    repo = Repository.create(_stores(tmp_path)[kind], _SMALL)
    tree, _ = _written(repo, tmp_path / "source")
    for position, digest in enumerate({part.object for entry in tree.entries for part in entry.parts}):
        path = tmp_path / "store" / key(digest)
        path.chmod(0o644)
        data = path.read_bytes()
        for number, wrong in enumerate(
            (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], bytes(byte ^ 255 for byte in data))
        ):
            path.write_bytes(wrong)
            with pytest.raises(CorruptObject, match=digest):
                materialise.materialise(repo.objects, [tree], tmp_path / f"{position}-{number}")
        path.write_bytes(data)


def test_restored_files_share_no_inode_with_the_store(tmp_path: Path) -> None:
    """A write to a checkout, also by root, must not change the store."""
    repo = Repository.create(LocalStore(tmp_path / "store"), _SMALL)
    tree, _ = _written(repo, tmp_path / "source")
    materialise.materialise(repo.objects, [tree], tmp_path / "target", read_only=False)
    for path in (tmp_path / "target").rglob("*"):
        if path.is_file():
            assert path.stat().st_nlink == 1
            path.write_bytes(b"changed")
    for digest in {part.object for entry in tree.entries for part in entry.parts}:
        assert repo.objects.get(digest)


def test_memory_stays_bounded_while_a_large_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that records the number of concurrent reads."""
    monkeypatch.setattr(concurrency, "_BUDGET_BYTES", 3 * 65536)
    repo = Repository.create(LocalStore(tmp_path / "store"), _SMALL)
    (tmp_path / "large").write_bytes(random.Random(2).randbytes(40 * 65536))
    files = [SourceFile(path=b"large", location=tmp_path / "large")]
    tree = trees.load(repo.objects, trees.write_tree(repo.objects, files).digest)
    begun, most, sizes = 0, 0, []

    def progress(what: str, done: int, total: int) -> None:
        nonlocal most
        most = max(most, begun - done)
        sizes.append(done)

    class Slow(CountingStore):
        def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
            nonlocal begun
            begun += 65536
            return super().get(key, start, length)

    slow = Repository.open(Slow(repo.store))
    begun = 0
    materialise.materialise(slow.objects, [tree], tmp_path / "target", progress)
    assert sizes[-1] == 40 * 65536 and most <= 4 * 65536
    assert (tmp_path / "target" / "large").read_bytes() == (tmp_path / "large").read_bytes()


def test_a_chunk_that_is_copied_or_cloned_is_verified(repo: Repository, tmp_path: Path) -> None:
    data, other = os.urandom(200_000), os.urandom(200_000)
    part = planted.whole(repo.objects, data)
    (tmp_path / "other").write_bytes(other)
    for name, expected in ((tmp_path / "store" / key(part.object), True), (tmp_path / "other", False)):
        with open(name, "rb") as source, open(tmp_path / "target", "w+b") as target:
            assert verified_copy.copy(repo.objects, source.fileno(), part, target.fileno(), 0) is expected
            assert (target.read() == data) is expected


@pytest.mark.parametrize("lacking", ["bytes", "inodes"])
def test_files_that_the_disk_cannot_hold_are_refused_before_the_first_byte(tmp_path: Path, lacking: str) -> None:
    target, number = tmp_path / "target", 30 if lacking == "inodes" else 1
    target.mkdir()
    with troubles.file_system(target, inodes=20 if lacking == "inodes" else 0) as is_mounted:
        if not is_mounted:
            loud_skip("no mounts for this user: a full file system")
        size = 10 if lacking == "inodes" else os.statvfs(target).f_bavail * 4096 + 1
        repo = Repository.create(LocalStore(tmp_path / "store"), _SMALL)
        contents = {f"{name}.bin": bytes(size) for name in range(number)}
        tree = trees.load(repo.objects, planted.tree(repo, tmp_path / "source", contents))
        with pytest.raises(materialise.NotWritten, match=lacking):
            materialise.materialise(repo.objects, [tree], target)
        assert list(target.iterdir()) == []
