"""The cache shared by real processes that race, are killed, and fill the disk."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from m5ws.repository.objects import key
from m5ws.repository.repository import Repository
from m5ws.store.cache import cache, limit
from m5ws.store.cache.cache import CachedStore
from m5ws.store.local import LocalStore
from tests.conftest import loud_skip
from tests.support.paths import ROOT

_READER = Path(__file__).parent / "scripts" / "reader.py"
_KIB = 2**10


def _start(base: Path, limit: int, seed: int, rounds: int, *more: object, within: tuple[str, ...] = ()) -> "_Reader":
    words = [_READER, base / "far", base / "cache", limit, seed, rounds, *more]
    return subprocess.Popen(
        [*within, sys.executable, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


_Reader = subprocess.Popen[str]


def _ended(reader: _Reader) -> tuple[int, int, str]:
    """Wait for a reader. Return the number of objects read, the number of requests to the store, and the output."""
    out, err = reader.communicate(timeout=120)
    assert reader.returncode == 0, err
    reads, fetched = out.split("\n")[1].split()
    return int(reads), int(fetched), err


def _far(base: Path, count: int = 40, size: int = 64 * _KIB) -> list[str]:
    repo = Repository.create(LocalStore(base / "far"))
    return [repo.objects.put(random.Random(number).randbytes(size)) for number in range(count)]


def _held_bytes(base: Path) -> int:
    return sum(found.size_bytes for found in LocalStore(base / "cache").list("objects/"))


def test_eight_processes_read_correct_bytes_through_a_cache_within_its_limit(tmp_path: Path) -> None:
    digests = _far(tmp_path)
    limit = 10 * 64 * _KIB
    readers = [_start(tmp_path, limit, seed, 3) for seed in range(8)]
    for reader in readers:
        assert _ended(reader)[0] == 3 * len(digests)
    # Eight entries filled at the same moment may exceed the limit.
    assert 0 < _held_bytes(tmp_path) <= limit + 8 * 64 * _KIB
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []


def test_eight_processes_fetch_each_object_once_if_the_cache_has_room(tmp_path: Path) -> None:
    digests = _far(tmp_path)
    readers = [_start(tmp_path, 2**30, seed, 2) for seed in range(8)]
    assert sum(_ended(reader)[1] for reader in readers) == len(digests)
    assert _held_bytes(tmp_path) == len(digests) * 64 * _KIB


@pytest.mark.parametrize("kills", [12, pytest.param(500, marks=pytest.mark.soak)])
def test_killed_readers_leave_a_correct_cache(tmp_path: Path, kills: int) -> None:
    digests = _far(tmp_path, 24, 256 * _KIB)
    limit = 8 * 256 * _KIB
    moments = random.Random(kills)
    survivor = _start(tmp_path, limit, 0, 4)
    for number in range(kills):
        reader = _start(tmp_path, limit, number, 1000)
        assert reader.stdout is not None and reader.stdout.readline() == "ready\n"
        time.sleep(moments.uniform(0, 0.05))  # Any moment is equally good.
        reader.send_signal(signal.SIGKILL)
        reader.communicate()
    assert _ended(survivor)[0] == 4 * len(digests)
    assert _ended(_start(tmp_path, limit, 1, 2))[0] == 2 * len(digests)
    for found in LocalStore(tmp_path / "cache").list("objects/"):
        data = (tmp_path / "cache" / found.key).read_bytes()
        assert key(Repository.open(LocalStore(tmp_path / "far")).objects.digest(data)) == found.key
    assert _held_bytes(tmp_path) <= limit


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A process waiting for a dead process would hang here.
    monkeypatch.setattr(cache, "_PATIENCE_S", 10**6)
    (digest,) = _far(tmp_path, 1)
    near = CachedStore(LocalStore(tmp_path / "far"), tmp_path / "cache", 2**30)
    child = os.fork()
    if child == 0:
        with limit.alone(tmp_path / "cache", key(digest), 0):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert near.get(key(digest))


def test_a_full_disk_causes_a_single_warning_and_no_error(tmp_path: Path) -> None:
    digests = _far(tmp_path)
    reads, fetched, said = _ended(_start(tmp_path, 2**30, 0, 2, 10 * _KIB))
    # Nothing is cached, so each read fetches again: the whole object, or a part.
    assert (reads, fetched) == (2 * len(digests), 4 * len(digests))
    assert said.count("cannot write to the cache") == 1 and "Traceback" not in said
    assert _held_bytes(tmp_path) == 0 and list((tmp_path / "cache" / "tmp").iterdir()) == []


def test_a_cache_on_a_full_file_system_keeps_recently_used_entries(tmp_path: Path) -> None:
    """A real, full file system of 1 MiB, in a mount namespace of this test."""
    (tmp_path / "cache").mkdir()
    mount = 'mount -t tmpfs -o size=1m none "$0" && exec "$@"'
    within = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(tmp_path / "cache"))
    try:
        able = subprocess.run([*within, "true"], capture_output=True, timeout=30).returncode == 0
    except FileNotFoundError:
        able = False
    if not able:
        loud_skip("no mount namespaces for this user: a full file system")
    digests = _far(tmp_path, 20, 128 * _KIB)
    reads, fetched, said = _ended(_start(tmp_path, 2**30, 0, 3, within=within))
    assert reads == 3 * len(digests)
    # A part of an object that was just read is cached, because space was made for it.
    assert fetched < 2 * reads and "Traceback" not in said


def test_an_entry_torn_by_a_power_failure_is_read_again(tmp_path: Path) -> None:
    digests = _far(tmp_path)
    _ended(_start(tmp_path, 2**30, 0, 1))
    for digest in digests[::2]:
        entry = tmp_path / "cache" / key(digest)
        entry.chmod(0o644)
        entry.write_bytes(bytes(64 * _KIB))
    reads, fetched, _ = _ended(_start(tmp_path, 2**30, 0, 1))
    assert (reads, fetched) == (len(digests), len(digests[::2]))
