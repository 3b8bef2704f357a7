"""Files that are written at once, and locks among processes."""

import os
from pathlib import Path

import pytest

from m5ws import locks
from m5ws.filesystem import mode_and_stamp, stamp, write_atomically


def test_a_file_is_replaced_atomically_without_leftover_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with open(path, "rb") as reader:
        write_atomically(os.fspath(path), b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["file"]


def test_a_failed_write_keeps_the_existing_content(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", b"new")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_stamp_changes_with_every_rewrite(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"one")
    before = os.stat(path)
    write_atomically(path, b"two")
    after = os.stat(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert stamp(before) != stamp(after) and stamp(before) != stamp(os.stat(path))
    assert mode_and_stamp(after) == (after.st_mode, *stamp(after))


def test_a_lock_has_one_holder_and_is_free_after_its_file_is_closed(tmp_path: Path) -> None:
    with open(tmp_path / "lock", "a") as first, open(tmp_path / "lock", "a") as second:
        assert locks.acquire(first.fileno())
        assert not locks.acquire(second.fileno()) and not locks.acquire(second.fileno(), 0.05)
        first.close()
        assert locks.acquire(second.fileno(), 60.0)
