"""The contract of `ports.ObjectStore`, on every store there is."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from m5ws.errors import NotFound, ObjectExists, UsageError
from m5ws.ports import ObjectStore
from m5ws.store import open_store
from m5ws.store.cache import cached
from m5ws.store.local import LocalStore
from memory_store import MemoryStore

if TYPE_CHECKING:
    from s3_servers import S3Server

Maker = Callable[[pytest.FixtureRequest], ObjectStore]


def _local(request: pytest.FixtureRequest) -> ObjectStore:
    return open_store(str(request.getfixturevalue("tmp_path") / "contract"))


def _s3(request: pytest.FixtureRequest) -> ObjectStore:
    request.getfixturevalue("s3_environment")
    server: S3Server = request.getfixturevalue("s3_server")
    return open_store(server.url(server.bucket()))


def _memory(request: pytest.FixtureRequest) -> ObjectStore:
    return MemoryStore()


def _cached(request: pytest.FixtureRequest, limit_bytes: int = 2**20) -> ObjectStore:
    path = request.getfixturevalue("tmp_path")
    return cached(open_store(str(path / "contract")), path / "cache", limit_bytes)


_MAKERS: dict[str, Maker] = {
    "cached": _cached,
    "cache-too-small": lambda request: _cached(request, 10),
    "local": _local,
    "memory": _memory,
    "s3": _s3,
}


@pytest.fixture(params=sorted(_MAKERS))
def any_store(request: pytest.FixtureRequest) -> ObjectStore:
    return _MAKERS[request.param](request)


def test_what_was_created_is_read_back_whole_and_in_ranges(any_store: ObjectStore) -> None:
    any_store.create("objects/ab/abc", b"0123456789")
    assert any_store.get("objects/ab/abc") == b"0123456789"
    assert any_store.get("objects/ab/abc", 3, 4) == b"3456"
    assert any_store.get("objects/ab/abc", 8, 100) == b"89"
    assert any_store.get("objects/ab/abc", 20, 1) == b""


def test_create_never_overwrites(any_store: ObjectStore) -> None:
    any_store.create("runs/r/run", b"first")
    with pytest.raises(ObjectExists):
        any_store.create("runs/r/run", b"second")
    assert any_store.get("runs/r/run") == b"first"


def test_an_absent_object_is_not_found(any_store: ObjectStore) -> None:
    with pytest.raises(NotFound):
        any_store.get("objects/ab/absent")
    assert any_store.stat("objects/ab/absent") is None
    any_store.delete("objects/ab/absent")


def test_list_is_in_key_order_and_by_prefix(any_store: ObjectStore) -> None:
    for key in ("b/2", "a/x/1", "a/y", "a/x.z", "b/1"):
        any_store.create(key, b"1")
    assert [found.key for found in any_store.list("")] == ["a/x.z", "a/x/1", "a/y", "b/1", "b/2"]
    assert [found.key for found in any_store.list("a/x")] == ["a/x.z", "a/x/1"]
    assert [found.key for found in any_store.list("c/")] == []


def test_names_are_the_next_path_components(any_store: ObjectStore) -> None:
    for key in ("runs/b/run", "runs/a/ledger/0001", "runs/a/run"):
        any_store.create(key, b"1")
    assert any_store.names("runs/") == ("a", "b")
    assert any_store.names("runs/a/") == ("ledger", "run")
    assert any_store.names("none/") == ()


def test_stat_tells_the_size(any_store: ObjectStore) -> None:
    any_store.create("objects/ab/abc", bytes(1234))
    found = any_store.stat("objects/ab/abc")
    assert found is not None and found.size_bytes == 1234 and found.key == "objects/ab/abc"


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/./b", "a b", "ä"])
def test_a_key_that_could_leave_the_store_is_refused(any_store: ObjectStore, key: str) -> None:
    with pytest.raises(UsageError):
        any_store.create(key, b"x")


def test_of_many_racing_writers_one_wins(any_store: ObjectStore) -> None:
    outcomes: list[bytes] = []
    gate = threading.Barrier(16)

    def write(name: bytes) -> None:
        gate.wait()
        try:
            any_store.create("refs/one", name)
        except ObjectExists:
            return
        outcomes.append(name)

    threads = [threading.Thread(target=write, args=(b"%d" % number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 1 and any_store.get("refs/one") == outcomes[0]


def test_unpublished_bytes_of_killed_writers_are_invisible_and_swept(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create("objects/ab/abc", b"1")
    left = tmp_path / "tmp" / "left-by-a-kill"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    assert [found.key for found in store.list("")] == ["objects/ab/abc"]
    LocalStore(tmp_path)
    assert not left.exists()


def test_a_listing_of_many_pages_is_whole_and_in_order(any_store: ObjectStore) -> None:
    keys = sorted(f"objects/{number % 7}/{number}" for number in range(1010))
    for key in keys:
        any_store.create(key, b"")
    assert [found.key for found in any_store.list("objects/")] == keys
    assert [found.key for found in any_store.list("objects/3")] == [key for key in keys if key.startswith("objects/3")]
    assert any_store.names("objects/") == tuple("0123456")
    assert len(any_store.names("objects/3/")) == 144
