"""Conformance tests of `ObjectStore`, for every store."""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from m5ws.errors import NotFound, ObjectExists, UsageError
from m5ws.store import open_store
from m5ws.store.cache.cache import cached
from m5ws.store.interface import ObjectStore
from m5ws.store.local import LocalStore
from tests.support.campaigns import soak_page
from tests.support.s3.s3_client import REGION, connect, fresh_bucket
from tests.support.stores.memory_store import MemoryStore

if TYPE_CHECKING:
    from tests.support.s3.ceph import Ceph
    from tests.support.s3.s3_servers import S3Server

Open = Callable[[], ObjectStore]
"""Opens a store as another client."""
Maker = Callable[[pytest.FixtureRequest], Open]
_WRITERS = 64
_RACES = (
    "| store | races | writers | clients | winners | told that the key is taken | different winners | seconds |",
    "|---|---|---|---|---|---|---|---|",
)


def _local(request: pytest.FixtureRequest) -> Open:
    path = request.getfixturevalue("tmp_path") / "contract"
    return lambda: open_store(str(path))


def _s3(request: pytest.FixtureRequest) -> Open:
    request.getfixturevalue("s3_environment")
    server: S3Server = request.getfixturevalue("s3_server")
    url = server.url(server.bucket())
    return lambda: open_store(url)


def _ceph(request: pytest.FixtureRequest) -> Open:
    request.getfixturevalue("s3_environment")
    server: Ceph = request.getfixturevalue("ceph")
    admin, patch = server.users["admin"], request.getfixturevalue("monkeypatch")
    patch.setenv("AWS_ACCESS_KEY_ID", admin.access_key)
    patch.setenv("AWS_SECRET_ACCESS_KEY", admin.secret_key)
    bucket = fresh_bucket(connect(server.endpoint, admin))
    url = f"s3://{bucket}/team/store?endpoint_url={server.endpoint}&region={REGION}"
    return lambda: open_store(url)


def _memory(request: pytest.FixtureRequest) -> Open:
    store = MemoryStore()
    return lambda: store


def _cached(request: pytest.FixtureRequest, limit_bytes: int = 2**20) -> Open:
    path = request.getfixturevalue("tmp_path")
    return lambda: cached(open_store(str(path / "contract")), path / "cache", limit_bytes)


_MAKERS: dict[str, Maker] = {
    "cached": _cached,
    "cache-too-small": lambda request: _cached(request, 10),
    "ceph": _ceph,
    "local": _local,
    "memory": _memory,
    "s3": _s3,
}
_STORES = [pytest.param(name, marks=pytest.mark.services if name == "ceph" else ()) for name in sorted(_MAKERS)]


@pytest.fixture(params=_STORES)
def any_open(request: pytest.FixtureRequest) -> Open:
    return _MAKERS[request.param](request)


@pytest.fixture
def any_store(any_open: Open) -> ObjectStore:
    return any_open()


def test_a_created_object_is_read_back_whole_and_in_ranges(any_store: ObjectStore) -> None:
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


def test_a_folder_without_objects_has_no_name(any_store: ObjectStore) -> None:
    for key in ("runs/a/ledger/1", "runs/b/run"):
        any_store.create(key, b"1")
    any_store.delete("runs/a/ledger/1")
    assert any_store.names("runs/") == ("b",)
    assert any_store.names("runs/a/") == ()


def test_stat_returns_the_size_of_an_object(any_store: ObjectStore) -> None:
    any_store.create("objects/ab/abc", bytes(1234))
    found = any_store.stat("objects/ab/abc")
    assert found is not None and found.size_bytes == 1234 and found.key == "objects/ab/abc"


def test_the_clock_of_a_store_is_the_clock_of_its_objects(any_store: ObjectStore) -> None:
    before_s = any_store.now()
    any_store.create("a", b"")
    stat = any_store.stat("a")
    assert stat is not None
    # S3 has seconds.
    assert before_s - 1 <= stat.modified_s <= any_store.now() + 1


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/./b", "a b", "ä"])
def test_a_key_that_could_leave_the_store_is_refused(any_store: ObjectStore, key: str) -> None:
    with pytest.raises(UsageError):
        any_store.create(key, b"x")


@pytest.mark.parametrize("races", [3, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(2 * 3600)])])
def test_exactly_one_of_many_racing_writers_creates_an_object(
    any_open: Open, races: int, request: pytest.FixtureRequest
) -> None:
    began_s, name = time.monotonic(), request.node.callspec.params["any_open"]
    # The light server handles one request at a time, so 64 concurrent writers overload it on a busy machine.
    count = 16 if name == "s3" else _WRITERS
    # Each S3 client has its own botocore, of many MiB.
    clients = [any_open() for _ in range(8 if name in ("ceph", "s3") else count)]
    gate = threading.Barrier(count)
    with ThreadPoolExecutor(count) as pool:
        writers = [pool.submit(_race, clients[writer % len(clients)], gate, writer, races) for writer in range(count)]
        errors = [error for writer in writers if (error := writer.exception()) is not None]
    assert [error for error in errors if not isinstance(error, threading.BrokenBarrierError)] == []
    won = [winner for writer in writers for winner in writer.result()]
    # For each race, the winner and its bytes. All other writers got ObjectExists.
    assert sorted(race for race, _ in won) == list(range(races))
    judge = any_open()
    assert all(judge.get(f"refs/{race}") == data for race, data in won)
    told, winners = races * count - len(won), len({data for _, data in won})
    seconds = time.monotonic() - began_s
    print(f"{name}: {races} races of {count}: {len(won)} winners, {told} told that the key is taken, {seconds:.0f} s")
    if races > 3:
        row = f"| {name} | {races} | {count} | {len(clients)} | {len(won)} | {told:,} | {winners} | {seconds:.0f} |"
        soak_page.put("races", _RACES, row)


def _race(store: ObjectStore, gate: threading.Barrier, writer: int, races: int) -> list[tuple[int, bytes]]:
    """Race for one key after another. Return the races won, with the bytes written."""
    won = []
    data = b"%d " % writer * (100 + writer)
    try:
        for race in range(races):
            gate.wait()
            with suppress(ObjectExists):
                store.create(f"refs/{race}", data)
                won.append((race, data))
                assert store.get(f"refs/{race}") == data
    except BaseException:
        # No thread waits for a failed thread.
        gate.abort()
        raise
    return won


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
    # Servers list 1,000 keys a page. Other stores have no pages.
    count = 1010 if any_store.url.startswith("s3:") else 110
    keys = sorted(f"objects/{number % 7}/{number}" for number in range(count))
    for key in keys:
        any_store.create(key, b"")
    assert [found.key for found in any_store.list("objects/")] == keys
    assert [found.key for found in any_store.list("objects/3")] == [key for key in keys if key.startswith("objects/3")]
    assert any_store.names("objects/") == tuple("0123456")
    assert len(any_store.names("objects/3/")) == len(range(3, count, 7))
