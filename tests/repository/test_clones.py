"""Work directories on a file system that shares blocks: the second of them costs neither a copy nor space."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from m5ws.repository.files import materialise, trees
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.repository import Repository
from m5ws.store.cache.cache import CachedStore
from m5ws.store.local import LocalStore
from tests.conftest import loud_skip
from tests.support.stores.counting_store import CountingStore

pytestmark = pytest.mark.services
_DATA_BYTES = 40 * 2**20 + 4321
_RECORDS_BYTES = 2**20


@pytest.fixture
def xfs(tmp_path: Path) -> Iterator[Path]:
    """An XFS in a file, or a loud skip where this machine cannot mount one."""
    if shutil.which("mkfs.xfs") is None or os.getuid() != 0:
        loud_skip("nothing on XFS: it needs root and mkfs.xfs (apt-get install xfsprogs)")
    image, folder = tmp_path / "image", tmp_path / "xfs"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(400 * 2**20)
    subprocess.run(("mkfs.xfs", "-q", str(image)), check=True)
    mounted = subprocess.run(("mount", "-o", "loop", str(image), str(folder)), capture_output=True, text=True)
    if mounted.returncode:
        loud_skip(f"nothing on XFS: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(("umount", str(folder)), check=True)


def _used_bytes(folder: Path) -> int:
    os.sync()
    status = os.statvfs(folder)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def _free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def test_a_second_work_directory_copies_no_input_bytes_and_is_its_own(tmp_path: Path, xfs: Path) -> None:
    data = os.urandom(_DATA_BYTES)
    (tmp_path / "data").write_bytes(data)
    repo = Repository.create(LocalStore(tmp_path / "store"))
    files = [SourceFile(path=b"data", location=tmp_path / "data")]
    tree = trees.load(repo.objects, trees.write_tree(repo.objects, files).digest)
    far = CountingStore(repo.store)
    node = Repository.open(CachedStore(far, xfs / "cache", 2**30))
    materialise.materialise(node.objects, [tree], xfs / "first")
    far.gets.clear()
    before = _used_bytes(xfs)
    materialise.materialise(node.objects, [tree], xfs / "second")
    assert _used_bytes(xfs) - before < _RECORDS_BYTES
    assert far.gets == []
    with (xfs / "second" / "data").open("r+b") as file:  # as root, whatever the mode
        file.write(b"changed")
    assert (xfs / "first" / "data").read_bytes() == data
    subprocess.run(("fallocate", "--length", str(_free_bytes(xfs) - _DATA_BYTES // 2), str(xfs / "filler")), check=True)
    materialise.materialise(node.objects, [tree], xfs / "third")
    assert (xfs / "third" / "data").read_bytes() == data
