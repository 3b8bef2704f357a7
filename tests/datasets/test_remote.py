"""Files of remote datasets: every kind of damage at every kind of remote, the cache, and processes that share it."""

import hashlib
import multiprocessing
import os
import pickle
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from m5ws.data import pinned
from m5ws.data.pinned import PinnedDataset
from m5ws.data.remote import RemoteFiles
from m5ws.errors import CorruptObject, NotFound
from m5ws.records.snapshot import Manifest, ManifestFile, RemoteDataset
from m5ws.store.cache.files import FileTooLarge
from m5ws.store.s3 import clients
from m5ws.store.s3.errors import NoCredentials
from tests.support.s3.s3_servers import descriptions_read_once
from tests.support.s3.scripted_s3 import ScriptedS3

SIZES = (0, 1, 4_000, 70_000)


class Remote:
    """A remote with one file of each size, and its dataset. `contents` are by the place of a file in the remote."""

    def __init__(self, kind: str, folder: Path, server: ScriptedS3) -> None:
        random.seed(kind)
        bodies = [random.randbytes(size) for size in SIZES]
        self.kind, self._folder, self._server = kind, folder, server
        algorithm = "md5" if kind == "dvc" else "sha256"
        digests = [hashlib.new(algorithm, body).hexdigest() for body in bodies]
        self.keys = [f"{each[:2]}/{each[2:]}" if kind == "dvc" else f"part/{n} é" for n, each in enumerate(digests)]
        url = str(folder / "remote") if kind == "dvc" else server.url()
        self.files = tuple(
            ManifestFile(path=f"part/{n} é", size_bytes=len(body), digest=f"{algorithm}:{digest}")
            for n, (body, digest) in enumerate(zip(bodies, digests, strict=True))
        )
        self.dataset = RemoteDataset(
            name="data/web", kind="dvc" if kind == "dvc" else "s3", url=url, manifest="0" * 64, size_bytes=sum(SIZES),
            files=len(SIZES), hash="1.dir" if kind == "dvc" else None,
        )  # fmt: skip
        for key, body in zip(self.keys, bodies, strict=True):
            self.put(key, body)
        self.bodies = bodies

    def put(self, key: str, body: bytes | None) -> None:
        if self.kind == "s3":
            self._server.objects.pop(quote(key), None)
            if body is not None:
                self._server.objects[quote(key)] = body
            return
        path = self._folder / "remote" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if body is not None:
            path.write_bytes(body)

    def open(self, limit_bytes: int = 10**8) -> PinnedDataset:
        remote = RemoteFiles(self.dataset, Manifest(files=self.files), self._folder / "cache", limit_bytes)
        return pinned.of_remote(remote, "data/web")

    def entries(self) -> list[Path]:
        return [path for path in (self._folder / "cache").rglob("*") if path.is_file() and "objects" in path.parts]


@pytest.fixture
def server(s3_environment: None) -> Iterator[ScriptedS3]:
    with descriptions_read_once(), ScriptedS3() as running:
        yield running


@pytest.fixture(params=["dvc", "s3"])
def remote(request: pytest.FixtureRequest, tmp_path: Path, server: ScriptedS3) -> Remote:
    return Remote(request.param, tmp_path, server)


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "flipped": lambda body: bytes([body[0] ^ 1]) + body[1:],
    "truncated": lambda body: body[: len(body) // 2],
    "longer": lambda body: body + b"\0",
    "replaced": lambda body: random.randbytes(len(body)),
    "emptied": lambda _: b"",
    "deleted": lambda _: None,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_in_a_remote_is_an_error_that_names_the_file_and_nothing_is_kept(remote: Remote, damage: str) -> None:
    for place, (key, body) in enumerate(zip(remote.keys, remote.bodies, strict=True)):
        damaged = DAMAGE[damage](body) if body or damage in ("longer", "deleted") else body
        if damaged == body:
            continue
        remote.put(key, damaged)
        with pytest.raises(NotFound if damaged is None else CorruptObject) as caught:
            remote.open().fetch(place)
        assert f"data/web/part/{place} é" in str(caught.value)
        if damaged is not None:
            digest = remote.files[place].digest
            actual = hashlib.new(digest.partition(":")[0], damaged).hexdigest()
            assert digest in str(caught.value)
            assert actual in str(caught.value)
        assert remote.entries() == []
        # After a repair the same process reads the file.
        remote.put(key, body)
        assert remote.open().fetch(place).read_bytes() == body
        remote.entries()[0].unlink()


def test_files_are_read_once_from_the_remote_and_then_from_the_cache(remote: Remote) -> None:
    dataset = remote.open()
    assert [dataset.fetch(n).read_bytes() for n in range(len(SIZES))] == remote.bodies
    for key in remote.keys:
        remote.put(key, None)
    for again in (dataset, remote.open(), pickle.loads(pickle.dumps(dataset))):  # noqa: S301
        assert [again.fetch(n).read_bytes() for n in range(len(SIZES))] == remote.bodies


@pytest.mark.parametrize("damage", [name for name in DAMAGE if name != "deleted"])
def test_a_damaged_copy_in_the_cache_is_replaced(remote: Remote, damage: str) -> None:
    copy = remote.open().fetch(3)
    copy.chmod(0o600)
    damaged = DAMAGE[damage](remote.bodies[3])
    assert damaged is not None
    copy.write_bytes(damaged)
    assert remote.open().fetch(3).read_bytes() == remote.bodies[3]


def test_eviction_spares_the_files_that_a_process_holds(tmp_path: Path, server: ScriptedS3) -> None:
    remote = Remote("dvc", tmp_path, server)
    limit_bytes = 75_500
    dataset = remote.open(limit_bytes)
    held = dataset.fetch(2)
    assert dataset.fetch(3).read_bytes() == remote.bodies[3]
    assert held.read_bytes() == remote.bodies[2]
    dataset.fetch(3).unlink()
    with pytest.raises(FileTooLarge):
        remote.open(60_000).fetch(3)


def _fetch(dataset: PinnedDataset, results: "multiprocessing.Queue[tuple[int, int]]") -> None:
    for n in range(len(SIZES)):
        results.put((n, dataset.fetch(n).stat().st_ino))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_a_node_fetch_a_file_once(tmp_path: Path, server: ScriptedS3, method: str) -> None:
    remote = Remote("s3", tmp_path, server)
    context: Any = multiprocessing.get_context(method)
    dataset, results = remote.open(), context.Queue()
    dataset.fetch(0)
    workers = [context.Process(target=_fetch, args=(dataset, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    found = {results.get(timeout=60) for _ in range(3 * len(SIZES))}
    for worker in workers:
        worker.join()
    assert len(found) == len(SIZES)
    assert server.count("GET") == len(SIZES)


def test_killed_downloads_leave_no_file_and_no_lock(tmp_path: Path, server: ScriptedS3) -> None:
    remote = Remote("dvc", tmp_path, server)
    body = random.randbytes(64 * 2**20)
    digest = hashlib.md5(body).hexdigest()
    remote.files = (*remote.files, ManifestFile(path="x", size_bytes=len(body), digest=f"md5:{digest}"))
    remote.put(f"{digest[:2]}/{digest[2:]}", body)
    for number in range(6):
        child = os.fork()
        if not child:
            remote.open().fetch(len(SIZES))
            os._exit(0)
        time.sleep(random.Random(number).uniform(0.0, 0.25))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert [path.stat().st_size for path in remote.entries()] in ([], [len(body)])
        for path in remote.entries():
            assert path.read_bytes() == body
            path.unlink()
    assert remote.open().fetch(len(SIZES)).read_bytes() == body


@pytest.mark.parametrize("fault", ["InternalError", "SlowDown", "half", "flip", "reset"])
def test_failed_requests_are_retried(tmp_path: Path, server: ScriptedS3, fault: str) -> None:
    remote = Remote("s3", tmp_path, server)
    dataset = remote.open()
    dataset.fetch(1)
    server.faults = [fault]
    assert dataset.fetch(3).read_bytes() == remote.bodies[3]


def test_an_expired_credential_in_mid_epoch_is_renewed_or_an_error(
    tmp_path: Path, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    monkeypatch.setattr(clients, "_RENEW_EVERY_S", 0.0)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    def log_in(name: str) -> None:
        shared.write_text(f"[default]\naws_access_key_id = {name}\naws_secret_access_key = s\n")

    remote = Remote("s3", tmp_path, server)
    dataset = remote.open()
    for place, name in enumerate(("first", "second", "third")):
        log_in(name)
        server.accepted_key = name
        assert dataset.fetch(place).read_bytes() == remote.bodies[place]
    server.accepted_key = "fourth"
    with pytest.raises(NoCredentials, match="data/web/part/3"):
        dataset.fetch(3)
    log_in("fourth")
    assert dataset.fetch(3).read_bytes() == remote.bodies[3]


def test_files_of_this_machine_are_a_dataset_outside_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "d" / "sub").mkdir(parents=True)
    (tmp_path / "d" / "sub" / "b").write_bytes(b"bb")
    (tmp_path / "d" / "a").write_bytes(b"a")
    dataset = pinned.open_dataset(str(tmp_path / "d"))
    assert [(file.path, file.size_bytes) for file in dataset.files] == [("a", 1), ("sub/b", 2)]
    assert dataset.fetch(1).read_bytes() == b"bb"
    with pytest.raises(NotFound):
        pinned.open_dataset(str(tmp_path / "absent"))
