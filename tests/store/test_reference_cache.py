"""Copies of references on this machine's disk: only of references that never change, checked, and the user's own."""

from pathlib import Path

import pytest

from m5ws.errors import NotFound
from m5ws.store.cache.cache import CachedStore
from m5ws.store.interface import ObjectStore
from m5ws.store.listed import ListedStore
from m5ws.store.local import LocalStore
from tests.support.stores.counting_store import CountingStore

_KEPT = ("format", "runs/a/run", "runs/a/verdict", "runs/a/ledger/0001/0/00000000", "snapshots/b/1-2", "notes/a/1-2")
_NOT_KEPT = ("runs/a/checkpoints/0000000001-0001", "runs/a/outputs/0001-0-final", "pins/a/b", "gc/a.plan", "index/a/b")


@pytest.fixture
def far(tmp_path: Path) -> CountingStore:
    return CountingStore(LocalStore(tmp_path / "far"))


def _cached(store: ObjectStore, folder: Path, references: Path) -> CachedStore:
    return CachedStore(store, folder / "objects", 2**20, references)


@pytest.fixture
def near(far: CountingStore, tmp_path: Path) -> CachedStore:
    return _cached(far, tmp_path, tmp_path / "near")


@pytest.mark.parametrize("key", [*_KEPT, *_NOT_KEPT])
def test_only_references_that_are_never_deleted_are_read_once(far: CountingStore, near: CachedStore, key: str) -> None:
    far.create(key, b"data")
    assert [near.get(key) for _ in range(3)] == [b"data"] * 3
    assert len(far.gets) == (1 if key in _KEPT else 3)


def test_a_created_reference_is_not_read(far: CountingStore, near: CachedStore) -> None:
    near.create("runs/a/run", b"data")
    assert near.get("runs/a/run") == b"data" and far.get("runs/a/run") == b"data"
    assert far.gets == ["runs/a/run"]


@pytest.mark.parametrize("key", ["removed/a", "runs/a/verdict"])
def test_absence_is_never_remembered(far: CountingStore, near: CachedStore, key: str) -> None:
    with pytest.raises(NotFound):
        near.get(key)
    far.create(key, b"now")
    assert near.get(key) == b"now"


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 36])
def test_a_damaged_copy_is_read_again_from_the_store(
    far: CountingStore, near: CachedStore, tmp_path: Path, damage: bytes
) -> None:
    near.create("runs/a/run", b"data")
    (copy,) = (tmp_path / "near" / "objects").glob("*/*")
    copy.chmod(0o600)
    copy.write_bytes(damage)
    assert [near.get("runs/a/run") for _ in range(2)] == [b"data"] * 2
    assert far.gets == ["runs/a/run"]


def test_two_stores_share_no_copies(tmp_path: Path, far: CountingStore, near: CachedStore) -> None:
    near.create("format", b"one")
    other = LocalStore(tmp_path / "other")
    other.create("format", b"two")
    assert _cached(other, tmp_path, tmp_path / "near").get("format") == b"two"


def test_copies_are_private_and_an_unusable_folder_is_no_error(tmp_path: Path, near: CachedStore) -> None:
    near.create("runs/a/run", b"data")
    assert (tmp_path / "near").stat().st_mode & 0o077 == 0
    (tmp_path / "file").write_text("in the way")
    blocked = _cached(near.origin, tmp_path, tmp_path / "file")
    assert [blocked.get("runs/a/run") for _ in range(2)] == [b"data"] * 2


def test_a_listed_store_answers_for_its_prefix_without_requests(far: CountingStore) -> None:
    keys = ("runs/a/run", "runs/a/ledger/0001/0/00000000", "runs/a/ledger/0001/1/00000000")
    for key in (*keys, "notes/a/1"):
        far.create(key, key.encode())
    listed = ListedStore(far, "runs/a/")
    far.create("runs/a/verdict", b"later")
    for prefix in ("runs/a/", "runs/a/ledger/", "runs/a/ledger/0001/", "runs/a/outputs/"):
        assert set(listed.names(prefix)) == set(far.names(prefix)) - {"verdict"}
        assert [stat.key for stat in listed.list(prefix)] == sorted(key for key in keys if key.startswith(prefix))
    with pytest.raises(NotFound):
        listed.get("runs/a/verdict")
    assert not far.gets
    assert listed.get(keys[0]) == keys[0].encode() and listed.get("notes/a/1") == b"notes/a/1"
    assert listed.stat(keys[0]) == far.stat(keys[0]) and listed.stat("runs/a/verdict") is None
