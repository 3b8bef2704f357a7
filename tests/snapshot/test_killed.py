"""Promises 1 and 4 under kill -9 at any moment: while a snapshot is taken, and while one is materialised."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from m5ws.records.base import Digest
from m5ws.records.tree import path_text
from m5ws.repository.files import trees
from m5ws.repository.fsck import fsck
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from m5ws.store.local import LocalStore
from tests.support.faults.kills import Kills, Scale
from tests.support.ranks.warm import Warm

if TYPE_CHECKING:
    from tests.support.s3.s3_servers import S3Server

_SCRIPT = Path(__file__).parent / "scripts" / "killed_process.py"
_ROUND = 25
_UNDISTURBED = 3
_SCALES = [Scale(6), pytest.param(Scale(500, soak=True), marks=[pytest.mark.soak, pytest.mark.timeout(7200)])]

Url = Callable[[Path], str]


@pytest.fixture(params=["directory", pytest.param("S3 (moto)", marks=pytest.mark.soak)])
def where(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def url(where: str, request: pytest.FixtureRequest) -> Url:
    """Return a function from a test's folder to the URL of a new store."""
    if where == "directory":
        return lambda folder: str(folder / "store")
    request.getfixturevalue("s3_environment")
    server: S3Server = request.getfixturevalue("s3_server")
    return lambda folder: server.url(server.bucket(), folder.name, region="eu-west-1")


@pytest.fixture
def warm(url: Url) -> Iterator[Warm]:
    with Warm(_SCRIPT) as parent:
        yield parent


class _Place:
    """A workspace, the store and the cache of one round, with changes in the first round and checks in later rounds."""

    def __init__(self, folder: Path, url: str, warm: Warm, draw: random.Random) -> None:
        self.files = folder / "files"
        self.cache = folder / "cache"
        self.url = url
        self._folder = folder
        self._warm = warm
        self._draw = draw
        (self.files / "code").mkdir(parents=True)
        (self.files / "data").mkdir()
        for number in range(24):
            self._write(number)
        (self.files / "data" / "large").write_bytes(draw.randbytes(256 * 2**10 + 77))
        self.upload = ("upload", url, self.cache, self.files, folder / "index")
        warm.run(*self.upload)
        self.repo = Repository.open(open_store(url))
        self.published = {self.only_new(set()): self.contents()}

    def _write(self, number: int) -> None:
        name = self.files / ("code" if number % 2 else "data") / f"{number}"
        name.write_bytes(self._draw.randbytes(self._draw.randrange(1, 6000)))

    def change(self) -> None:
        """Make the changes of a day's work: some small files, a new file, and parts of the large file."""
        for number in (*self._draw.sample(range(24), 6), self._draw.randrange(1000, 10**6)):
            self._write(number)
        with open(self.files / "data" / "large", "r+b") as file:
            for chunk in self._draw.sample(range(8), 3):
                file.seek(chunk * 32 * 2**10)
                file.write(self._draw.randbytes(100))

    def contents(self) -> dict[str, bytes]:
        return _contents(self.files)

    def only_new(self, known: set[Digest]) -> Digest:
        (new,) = set(snapshots.ids(self.repo)) - known
        return new

    def readable(self, snapshot_id: Digest) -> dict[str, bytes]:
        """Return every byte of a snapshot, read from the store itself and verified."""
        parts = snapshots.load(self.repo, snapshot_id).trees.values()
        return {
            path_text(entry.path): trees.read_file(self.repo.objects, entry)
            for part in parts
            for entry in trees.load(self.repo.objects, part).entries
        }

    def judge(self) -> None:
        """Check the whole store, all of its snapshots, and the cache."""
        report = fsck.check(self.repo, read_data=True)
        assert report.clean, report.damage
        assert report.read_objects == report.objects and report.snapshots == len(self.published)
        assert {digest: self.readable(digest) for digest in snapshots.ids(self.repo)} == self.published
        self.judge_cache()

    def judge_cache(self) -> None:
        """Check that the cache contains only complete copies."""
        for stat in LocalStore(self.cache).list("objects/"):
            data = (self.cache / stat.key).read_bytes()
            assert self.repo.objects.digest(data) == stat.key.rpartition("/")[2]


def _contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _uploads(place: _Place, warm: Warm, kills: Kills, limit: int) -> None:
    """Kill uploads until `limit` kills are counted. Each is repeated with the same index and cache."""
    for number in range(_UNDISTURBED):
        place.change()
        kills.usual(ended := warm.run(*place.upload))
        place.published[ended.said.strip()] = place.contents()
        assert number + 2 == len(place.published)
    while kills.kills < limit:
        place.change()
        expected = place.contents()
        ended = warm.run(*place.upload, moment_s=kills.moment_s())
        appeared = set(snapshots.ids(place.repo)) - place.published.keys()
        assert [place.readable(digest) for digest in appeared] == [expected] * len(appeared)
        assert ended.killed or appeared == {ended.said.strip()}
        kills.count(ended, done=bool(appeared))
        repeated = warm.run(*place.upload).said.strip()
        # The killed process published this snapshot, or none.
        assert appeared <= {repeated} == set(snapshots.ids(place.repo)) - place.published.keys()
        assert place.readable(repeated) == expected
        place.published[repeated] = expected


@pytest.mark.parametrize("scale", _SCALES)
def test_an_upload_killed_at_random_moments_leaves_a_correct_store(
    tmp_path: Path, url: Url, where: str, warm: Warm, scale: Scale
) -> None:
    kills = Kills("upload", where, scale.seed())
    while kills.kills < scale.kills:
        folder = tmp_path / f"after-{kills.kills}"
        place = _Place(folder, url(folder), warm, kills.draw)
        _uploads(place, warm, kills, min(scale.kills, kills.kills + _ROUND))
        place.judge()
        shutil.rmtree(folder)
        kills.report(write=scale.soak)


def _materialisings(place: _Place, warm: Warm, kills: Kills, limit: int) -> None:
    """Kill materialisations into a fresh folder until `limit` kills are counted. Each is repeated."""
    ((snapshot_id, expected),) = place.published.items()
    target = place.files.with_name("target")

    def bring(moment_s: float | None) -> bool:
        """Return True if all files were written before the kill."""
        shutil.rmtree(target, ignore_errors=True)
        ended = warm.run("materialise", place.url, place.cache, snapshot_id, target, moment_s=moment_s)
        whole = _contents(target) == expected
        assert whole or ended.killed
        place.judge_cache()
        if moment_s is None:
            kills.usual(ended)
        else:
            kills.count(ended, done=whole)
        return whole

    for _ in range(_UNDISTURBED):
        shutil.rmtree(place.cache)
        assert bring(None)
    while kills.kills < limit:
        shutil.rmtree(place.cache)
        bring(kills.moment_s())
        assert _repeated(place, warm, snapshot_id, target) == expected


def _repeated(place: _Place, warm: Warm, snapshot_id: Digest, target: Path) -> dict[str, bytes]:
    """Materialise the snapshot again, with the cache of the killed process, and return the files."""
    shutil.rmtree(target, ignore_errors=True)
    warm.run("materialise", place.url, place.cache, snapshot_id, target)
    return _contents(target)


@pytest.mark.parametrize("scale", _SCALES)
def test_a_materialisation_killed_at_random_moments_leaves_a_correct_cache(
    tmp_path: Path, url: Url, where: str, warm: Warm, scale: Scale
) -> None:
    kills = Kills("materialise, and fill the cache", where, scale.seed())
    place = _Place(tmp_path / "all", url(tmp_path), warm, kills.draw)
    while kills.kills < scale.kills:
        _materialisings(place, warm, kills, min(scale.kills, kills.kills + _ROUND))
        place.judge()
        kills.report(write=scale.soak)
