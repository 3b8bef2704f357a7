"""The cache: its contents, its evictions, and that none of its failures is an error for the reader."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from m5ws.errors import CorruptObject, NotFound
from m5ws.records.store import Format
from m5ws.records.tree import Slice
from m5ws.repository.objects import Objects, key
from m5ws.store.cache import cache, limit
from m5ws.store.cache.cache import CachedStore
from m5ws.store.local import LocalStore
from tests.support.stores.counting_store import CountingStore

_MIB = 2**20


@pytest.fixture
def far(tmp_path: Path) -> CountingStore:
    """The remote store."""
    return CountingStore(LocalStore(tmp_path / "far"))


@pytest.fixture
def near(far: CountingStore, tmp_path: Path) -> CachedStore:
    return CachedStore(far, tmp_path / "cache", 64 * _MIB)


@pytest.fixture
def objects(near: CachedStore) -> Objects:
    return Objects(near, Format())


def _put(far: CountingStore, data: bytes) -> str:
    return Objects(far, Format()).put(data)


def _entry(tmp_path: Path, digest: str) -> Path:
    path = tmp_path / "cache" / key(digest)
    path.chmod(0o644)
    return path


def test_an_object_is_fetched_once(far: CountingStore, objects: Objects) -> None:
    digest = _put(far, b"content")
    assert [objects.get(digest) for _ in range(3)] == [b"content"] * 3
    assert far.gets == [key(digest)]


def test_objects_not_named_by_their_content_are_never_cached(far: CountingStore, near: CachedStore) -> None:
    far.create("runs/r/run", b"1")
    assert [near.get("runs/r/run") for _ in range(2)] == [b"1"] * 2
    assert near.refetch("runs/r/run") == b"1"
    assert far.gets == ["runs/r/run"] * 3
    far.delete("runs/r/run")
    with pytest.raises(NotFound):
        near.get("runs/r/run")


def test_reading_a_part_caches_a_whole_pack_or_part_of_a_large_object(far: CountingStore, objects: Objects) -> None:
    pack = bytes(range(256)) * 64
    large = os.urandom(cache.WHOLE_BYTES + 5 * _MIB)
    for data, fetches in ((pack, 1), (large, 3)):
        far.gets.clear()
        digest = _put(far, data)
        for offset in (0, 100, len(data) - 50):
            piece = data[offset : offset + 50]
            part = Slice(object=digest, offset=offset, size_bytes=50, digest=objects.digest(piece))
            assert objects.read(part) == piece
        assert len(far.gets) == fetches


def test_a_chunk_that_is_read_as_a_slice_is_cached(far: CountingStore, objects: Objects, near: CachedStore) -> None:
    data = os.urandom(cache.WHOLE_BYTES + 1)
    digest = _put(far, data)
    part = Slice(object=digest, offset=0, size_bytes=len(data), digest=digest)
    assert objects.read(part) == objects.read(part) == data
    assert far.gets == [key(digest)] and near.cached_size(key(digest)) == len(data)


def test_a_small_created_object_is_cached_and_every_created_object_is_stored(
    far: CountingStore, objects: Objects
) -> None:
    small, large = objects.put(b"record"), objects.put(bytes(cache.WHOLE_BYTES + 1))
    assert far.stat(key(small)) and far.stat(key(large))
    objects.get(small)
    assert far.gets == []
    objects.get(large)
    assert far.gets == [key(large)]


def test_the_presence_of_an_object_is_checked_in_the_store(far: CountingStore, objects: Objects) -> None:
    digest = objects.put(b"record")
    far.delete(key(digest))
    assert not objects.has(digest)
    assert objects.put(b"record") == digest and objects.has(digest)


def test_an_object_that_gc_deletes_is_removed_from_the_cache(
    far: CountingStore, near: CachedStore, objects: Objects
) -> None:
    digest = objects.put(b"record")
    near.delete(key(digest))
    with pytest.raises(NotFound):
        objects.get(digest)


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "extend", "directory"])
def test_a_damaged_entry_is_replaced_and_never_an_error(
    far: CountingStore, objects: Objects, near: CachedStore, tmp_path: Path, damage: str
) -> None:
    data = os.urandom(5000)
    digest = _put(far, data)
    part = Slice(object=digest, offset=4000, size_bytes=1000, digest=objects.digest(data[4000:]))
    reads: tuple[Callable[[], bytes], ...] = (
        lambda: objects.get(digest),
        lambda: objects.read(part),
        lambda: bytes(objects.pieces(digest, [part])[0]),
    )
    for read, expected in zip(reads, (data, data[4000:], data[4000:]), strict=True):
        objects.get(digest)
        entry = _entry(tmp_path, digest)
        held = entry.read_bytes()
        if damage == "directory":
            entry.unlink()
            entry.mkdir()
        else:
            entry.write_bytes(
                {
                    "flip": held[:4500] + bytes([held[4500] ^ 1]) + held[4501:],
                    "truncate": held[:4500],
                    "empty": b"",
                    "extend": b"\0" + held,
                }[damage]
            )
        assert read() == expected
        if damage == "directory":
            entry.rmdir()
        else:
            assert entry.read_bytes() == data


def test_a_damaged_object_of_the_store_is_named_in_an_error(far: CountingStore, objects: Objects) -> None:
    digest = _put(far, b"content")
    path = Path(far.url) / key(digest)
    path.chmod(0o644)
    path.write_bytes(b"c0ntent")
    for _ in range(2):
        with pytest.raises(CorruptObject, match=digest):
            objects.get(digest)
    path.write_bytes(b"content")
    assert objects.get(digest) == b"content"


def _fill(far: CountingStore, objects: Objects, count: int) -> list[str]:
    """Read `count` objects of a MiB each. Each was last used before the next object."""
    digests = [_put(far, bytes([number]) * _MIB) for number in range(count)]
    for digest in digests:
        objects.get(digest)
    return digests


def _age(tmp_path: Path, digests: list[str]) -> None:
    now = time.time()
    for position, digest in enumerate(digests):
        used_s = now - 10_000 + position
        os.utime(tmp_path / "cache" / key(digest), (used_s, used_s))


def test_the_least_recently_used_entry_is_dropped_first(far: CountingStore, tmp_path: Path) -> None:
    near = CachedStore(far, tmp_path / "cache", 16 * _MIB)
    objects = Objects(near, Format())
    digests = _fill(far, objects, 16)
    _age(tmp_path, digests)
    for digest in digests[:4]:
        objects.get(digest)  # The oldest is used again.
    objects.get(_put(far, b"one more" * 131_072))
    held = [near.cached_size(key(digest)) is not None for digest in digests]
    # A trim also leaves a sixteenth free.
    assert held == [True] * 4 + [False] * 2 + [True] * 10


def test_an_open_entry_can_be_dropped(far: CountingStore, near: CachedStore, objects: Objects) -> None:
    digest = _put(far, b"content")
    objects.get(digest)
    descriptor = near.descriptor(key(digest))
    assert descriptor is not None
    near._drop(key(digest))
    assert os.read(descriptor, 100) == b"content"
    os.close(descriptor)
    assert objects.get(digest) == b"content" and len(far.gets) == 2


def test_an_object_larger_than_the_cache_is_read_and_not_kept(far: CountingStore, tmp_path: Path) -> None:
    near = CachedStore(far, tmp_path / "cache", _MIB)
    digest = _put(far, bytes(2 * _MIB))
    assert Objects(near, Format()).get(digest) == bytes(2 * _MIB)
    assert near.cached_size(key(digest)) is None


def test_the_next_trim_corrects_a_lost_size_account_and_lost_entries(far: CountingStore, tmp_path: Path) -> None:
    near = CachedStore(far, tmp_path / "cache", 8 * _MIB)
    objects = Objects(near, Format())
    digests = _fill(far, objects, 6)
    usage = tmp_path / "cache" / "usage"
    usage.write_bytes((10**12).to_bytes(8, "big"))
    objects.get(_put(far, b"a"))
    assert int.from_bytes(usage.read_bytes(), "big") == 6 * _MIB + 1
    assert all(near.cached_size(key(digest)) for digest in digests)
    usage.unlink()
    objects.get(_put(far, b"b"))
    assert int.from_bytes(usage.read_bytes(), "big") == 6 * _MIB + 2
    for digest in digests:
        _entry(tmp_path, digest).unlink()
    assert objects.get(digests[0])


def test_threads_that_miss_the_same_object_send_one_request(far: CountingStore, objects: Objects) -> None:
    digest = _put(far, os.urandom(_MIB))
    gate = threading.Barrier(8)

    def read() -> None:
        gate.wait()
        objects.get(digest)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert far.gets == [key(digest)]


def test_a_reader_waits_only_briefly_for_a_hanging_fetch(
    far: CountingStore, objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_PATIENCE_S", 0.05)
    digest = _put(far, b"content")
    with limit.alone(tmp_path / "cache", key(digest), 0):
        assert objects.get(digest) == b"content"


def test_an_object_is_cached_without_lock_files(far: CountingStore, objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "locks").write_text("in the way")
    digest = _put(far, b"content")
    assert [objects.get(digest) for _ in range(2)] == [b"content"] * 2
    assert len(far.gets) == 1


def test_an_unusable_cache_folder_causes_a_single_warning_and_no_error(
    far: CountingStore, objects: Objects, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("in the way")
    for data in (b"one", b"two"):
        digest = _put(far, data)
        assert [objects.get(digest) for _ in range(2)] == [data] * 2
    assert len(caplog.records) == 1 and "cannot write to the cache" in caplog.text


def test_leftover_files_of_killed_processes_are_removed(far: CountingStore, near: CachedStore, tmp_path: Path) -> None:
    left = tmp_path / "cache" / "tmp" / "left-by-a-kill"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    CachedStore(far, tmp_path / "cache", _MIB)
    assert not left.exists()


@pytest.mark.parametrize("first", ["read", "create"])
def test_the_cache_folder_is_private(far: CountingStore, objects: Objects, tmp_path: Path, first: str) -> None:
    objects.get(_put(far, b"content")) if first == "read" else objects.put(b"content")
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0
