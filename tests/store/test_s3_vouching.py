"""Objects with a checksum of the S3 server are checked without a download; others are read."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from m5ws.records.snapshot import Annotation, Snapshot
from m5ws.records.store import Format
from m5ws.records.tree import Entry, Pack, Tree
from m5ws.repository.fsck import fsck
from m5ws.repository.fsck.damage import FsckReport
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.store.interface import ChecksumListing
from m5ws.store.local import LocalStore
from m5ws.store.s3.errors import AccessDenied
from m5ws.store.s3.location import parse
from m5ws.store.s3.retry import RetryPolicy
from m5ws.store.s3.store import S3Store
from tests.support.records.filled_store import Scale, fill
from tests.support.s3.s3_servers import ENVIRONMENT
from tests.support.s3.scripted_s3 import ScriptedS3

_AT_ONCE = RetryPolicy(budget_s=60.0, first_s=0.0, longest_s=0.0)
_SCALE = Scale(large=10, large_bytes=8192, small=5, small_bytes=400, saved_bytes=8192, snapshots=2)
Open = Callable[..., Repository]


@pytest.fixture(autouse=True)
def _credentials(s3_environment: None) -> None:
    pass


@pytest.fixture
def server(quick_clients: None) -> Iterator[ScriptedS3]:
    with ScriptedS3() as running:
        running.keeps_checksums = True
        yield running


@pytest.fixture(scope="module")
def filled(
    tmp_path_factory: pytest.TempPathFactory, quick_clients: None
) -> Callable[..., tuple[dict[str, bytes], dict[str, Any]]]:
    """The objects of a server after a store was filled through it, by kind of checksum. Filled once each."""

    @functools.cache
    def made(integrity: str) -> tuple[dict[str, bytes], dict[str, Any]]:
        with ScriptedS3() as server, pytest.MonkeyPatch.context() as patch:
            for name, value in ENVIRONMENT.items():
                patch.setenv(name, value)
            server.keeps_checksums = True
            store = S3Store(parse(server.url(integrity=integrity)), _AT_ONCE)
            form = Format(chunk_bytes=4096, small_bytes=2048, pack_bytes=2048)
            fill(Repository.create(store, form), tmp_path_factory.mktemp("filled") / "files", _SCALE)
            return server.objects, server.checksums

    return made


@pytest.fixture
def open_filled(server: ScriptedS3, filled: Callable[..., tuple[dict[str, bytes], dict[str, Any]]]) -> Open:
    """Return a function that opens a filled store on the server."""

    def opened(integrity: str = "signed") -> Repository:
        objects, checksums = filled(integrity)
        server.objects, server.checksums = dict(objects), dict(checksums)
        return Repository.open(S3Store(parse(server.url(integrity=integrity)), _AT_ONCE))

    return opened


def _chunks(repo: Repository) -> list[str]:
    """Return the keys of chunks: objects of bytes that are named whole."""
    found = set()
    for snapshot in snapshots.ids(repo):
        for tree in repo.objects.get_record(snapshot, Snapshot).trees.values():
            for entry in repo.objects.get_record(tree, Tree).entries:
                found |= {part.object for part in entry.parts if part.object == part.digest}
    return [f"objects/{digest[:2]}/{digest}" for digest in sorted(found)]


def _flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 4])


def _named(report: FsckReport) -> list[tuple[str, str]]:
    return [(one.kind, one.key) for one in report.damage]


def test_fsck_downloads_no_chunk_with_a_server_checksum(server: ScriptedS3, open_filled: Open) -> None:
    repo = open_filled()
    chunks = _chunks(repo)
    server.requests.clear()
    report = fsck.check(repo)
    assert report.clean and not report.distrusted
    (vouched,) = report.vouched
    assert vouched.checksum == "SHA256"
    assert vouched.objects + report.read_objects == report.objects
    assert vouched.size_bytes + report.read_bytes == report.size_bytes
    asked = {key for method, key, _ in server.requests if method == "GET"}
    assert len(chunks) >= 10 and asked.isdisjoint(chunks) and vouched.objects >= len(chunks)
    assert len(asked & server.objects.keys() & {key for key in asked if key[:8] == "objects/"}) == report.read_objects
    assert server.count("HEAD") == 0


def test_read_data_finds_changed_bytes_with_an_unchanged_checksum(server: ScriptedS3, open_filled: Open) -> None:
    repo = open_filled()
    where = _chunks(repo)[0]
    server.objects[where] = _flipped(server.objects[where])
    assert fsck.check(repo).clean
    report = fsck.check(repo, read_data=True)
    assert _named(report) == [("corrupt", where)] and report.damage[0].harms
    assert (report.vouched, report.read_objects, report.read_bytes) == ((), report.objects, report.size_bytes)


@pytest.mark.parametrize("kept", ["none", "of parts"])
def test_fsck_reads_every_object_if_no_full_checksum_exists(server: ScriptedS3, open_filled: Open, kept: str) -> None:
    repo = open_filled()
    if kept == "none":
        server.checksums.clear()
    else:
        server.checksum_type = "COMPOSITE"
    report = fsck.check(repo)
    assert report.clean and report.vouched == () and report.read_objects == report.objects
    where = _chunks(repo)[3]
    server.objects[where] = _flipped(server.objects[where])
    assert _named(fsck.check(repo)) == [("corrupt", where)]


def test_fsck_reads_only_chunks_without_a_checksum(server: ScriptedS3, open_filled: Open) -> None:
    repo = open_filled()
    first, second = _chunks(repo)[:2]
    del server.checksums[first]
    server.objects |= {where: _flipped(server.objects[where]) for where in (first, second)}
    assert _named(fsck.check(repo)) == [("corrupt", first)]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda data: data[:-1], "truncated"),
        (lambda data: b"", "truncated"),
        (lambda data: data + b"\0", "corrupt"),
        (None, "missing"),
    ],
)
def test_a_wrong_size_is_found_without_a_download(
    server: ScriptedS3, open_filled: Open, change: Callable[[bytes], bytes] | None, kind: str
) -> None:
    repo = open_filled()
    where = _chunks(repo)[0]
    data = server.objects.pop(where)
    if change is not None:
        server.objects[where] = change(data)
    server.requests.clear()
    report = fsck.check(repo)
    assert _named(report) == [(kind, where)] and report.damage[0].harms and report.vouched
    assert where not in {key for _, key, _ in server.requests}


def test_fsck_reads_an_unreferenced_object(server: ScriptedS3, open_filled: Open) -> None:
    repo = open_filled()
    digest = repo.objects.put(b"left by a killed writer")
    where = f"objects/{digest[:2]}/{digest}"
    server.objects[where] = server.objects[where][:-1]
    assert ("corrupt", where) in _named(fsck.check(repo))


def test_fsck_reads_a_pack_with_an_unreferenced_end(server: ScriptedS3, open_filled: Open) -> None:
    repo = open_filled()
    pack = repo.objects.put(b"named, and not")
    name = repo.objects.digest(b"named")
    entry = Entry(path=b"a", mode="file", size_bytes=5, digest=name)
    tree = repo.objects.put_record(Tree(entries=(entry,), packs=(Pack(object=pack, files=1),)))
    record = snapshots.load(repo, snapshots.ids(repo)[0])
    snapshot = msgspec.structs.replace(record, config=tree)
    snapshots.publish(repo, snapshot, Annotation(created_s=1.0))
    assert fsck.check(repo).clean
    where = f"objects/{pack[:2]}/{pack}"
    server.objects[where] = b"named, and nut"
    report = fsck.check(repo)
    assert report.distrusted and _named(report) == [("corrupt", where)]


def test_a_server_with_a_false_checksum_of_a_record_is_not_trusted(server: ScriptedS3, open_filled: Open) -> None:
    repo = open_filled()
    record, chunk = snapshots.ids(repo)[0], _chunks(repo)[0]
    where = f"objects/{record[:2]}/{record}"
    server.objects |= {one: _flipped(server.objects[one]) for one in (where, chunk)}
    report = fsck.check(repo)
    assert report.distrusted and report.vouched == () and report.read_objects == report.objects
    assert {("corrupt", where), ("corrupt", chunk)} == set(_named(report))


def test_fsck_accepts_a_crc_checksum_in_place_of_reading(server: ScriptedS3, open_filled: Open) -> None:
    repo = open_filled("crc64nvme")
    report = fsck.check(repo)
    assert report.clean and [one.checksum for one in report.vouched] == ["CRC64NVME"]
    assert server.count("HEAD") == 0


def test_a_denied_request_is_an_error_and_no_damage(server: ScriptedS3, open_filled: Open) -> None:
    repo = open_filled()
    server.always = lambda method, key: "AccessDenied" if key.startswith("runs/") else None
    with pytest.raises(AccessDenied):
        fsck.check(repo)


def test_failed_checksum_listings_are_repeated(server: ScriptedS3) -> None:
    store = S3Store(parse(server.url()), _AT_ONCE)
    for number in range(3):
        store.create(f"objects/ab/{number}", b"%d" % number)
    server.checksums.pop("objects/ab/1")
    server.faults = ["InternalError", "half", "reset"]
    found = list(store.list_with_checksums("objects/"))
    assert [(one.key, one.size_bytes, one.checksum) for one in found] == [
        ("objects/ab/0", 1, "SHA256"),
        ("objects/ab/1", 1, None),
        ("objects/ab/2", 1, "SHA256"),
    ]


def test_fsck_of_a_directory_store_reads_every_object(tmp_path: Path) -> None:
    repo = Repository.create(LocalStore(tmp_path / "store", durable=False))
    assert not isinstance(repo.store, ChecksumListing)
    fill(repo, tmp_path / "files", Scale())
    report = fsck.check(repo)
    assert report == fsck.check(repo, read_data=True)
    assert (report.read_objects, report.read_bytes) == (report.objects, report.size_bytes)
