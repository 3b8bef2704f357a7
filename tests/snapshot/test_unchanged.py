"""A workspace that is known from a glance is the one that a full look finds, whatever was done to it."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from m5ws.config.settings import Settings
from m5ws.repository.files import trees
from m5ws.repository.files.writer import FileChanged
from m5ws.repository.repository import Repository
from m5ws.snapshot import snapshot
from m5ws.snapshot.sources.dvc import Dvc
from m5ws.snapshot.sources.git import Git
from m5ws.snapshot.sources.interface import SourceState
from m5ws.store.local import LocalStore
from tests.support.faults.settling import age, end_second, settle
from tests.support.workspace.captures import Machine, make_settings
from tests.support.workspace.checkouts import git, write
from tests.support.workspace.workspace_changes import CHANGES, THE_SAME, make, quietly

SAID = make_settings(config={"files": ["config.yaml", "local.yaml", "conf/*.yaml"]}, data={"paths": ["data"]})


class Counting(Git):
    """Git that counts full looks."""

    looks = 0

    def state(self, root: Path) -> SourceState:
        self.looks += 1
        return super().state(root)


class Place(NamedTuple):
    root: Path
    repo: Repository

    def take(
        self, settings: Settings = SAID, index: str = "index", source: Git | None = None
    ) -> snapshot.CapturedSnapshot:
        home = self.root / ".m5ws"
        datasets = Dvc()
        return snapshot.take(self.root, settings, self.repo, source or Git(), datasets, None, Machine(), home / index)

    def looks(self) -> int:
        """Take a snapshot and return how often git was asked for everything."""
        source = Counting()
        self.take(source=source)
        return source.looks


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    """Workspaces that are remembered, one for each change."""
    base = tmp_path_factory.mktemp("unchanged")
    made = {name: Place(base / str(number), _repository(base, number)) for number, name in enumerate(CHANGES)}
    for name, (root, _) in made.items():
        make(root, name)
        age(root)
    for place in made.values():
        place.take()
    end_second(place.root for place in made.values())
    return made


def _repository(base: Path, number: int) -> Repository:
    return Repository.create(LocalStore(base / f"store-{number}"))


@pytest.mark.parametrize("change", CHANGES)
def test_a_snapshot_by_a_glance_equals_one_by_a_full_capture(places: dict[str, Place], change: str) -> None:
    place = places[change]
    before = place.take()
    CHANGES[change](place.root)
    glanced = place.take()
    looked = place.take(index="another index")
    assert (glanced.id, glanced.files, glanced.size_bytes) == (looked.id, looked.files, looked.size_bytes)
    assert glanced.snapshot == looked.snapshot
    assert (glanced.id == before.id) == (change in THE_SAME)


def test_a_workspace_that_is_remembered_is_not_listed_again(places: dict[str, Place]) -> None:
    place = places["nothing"]
    assert place.looks() == 0
    (place.root / "train.py").touch()
    settle(place.root)
    assert (place.looks() > 0, place.looks()) == (True, 0)


def test_changed_settings_are_another_workspace(places: dict[str, Place]) -> None:
    place = places["nothing"]
    place.take()
    left_out = make_settings(code={"exclude": ["lib/"]}, config={"files": ["config.yaml"]}, data={"paths": ["data"]})
    assert place.take(left_out).id == place.take(left_out, index="yet another").id != place.take().id


def test_objects_that_the_store_lost_are_written_again(places: dict[str, Place]) -> None:
    place = places["nothing"]
    whole = place.take()
    for stat in list(place.repo.store.list("objects/")):
        place.repo.store.delete(stat.key)
        captured = place.take()
        assert captured.id == whole.id
        for tree in captured.snapshot.trees.values():
            for entry in trees.located(place.repo.objects, place.repo.locations, tree).entries:
                trees.read_file(place.repo.objects, place.repo.locations, entry)


def test_a_change_in_the_second_in_which_git_wrote_its_index_is_detected(tmp_path: Path) -> None:
    """If git would not detect the change, the capture is not remembered."""
    place = Place(tmp_path / "w", Repository.create(LocalStore(tmp_path / "store")))
    write(place.root, {"train.py": "0000\n", "data/x": "x"})
    git(place.root, "init", "-q")
    for number in range(12):
        if number % 4 == 0:
            git(place.root, "add", "train.py")
            git(place.root, "commit", "-q", "--allow-empty", "-m", "git may miss a change within this second")
        quietly(place.root / "train.py", b"%04d\n" % (number + 1))
        settings = make_settings(data={"paths": ["data"]})
        assert place.take(settings).id == place.take(settings, index=f"index-{number}").id


_WHILE = """
import os, sys, time
path = sys.argv[1]
number = 0
while True:
    number += 1
    found = os.stat(path)
    with open(path, "r+b") as file:
        file.write(b"%06d" % number)
    os.utime(path, ns=(found.st_mtime_ns, found.st_mtime_ns))
    time.sleep(0.02)
"""


def test_a_file_that_is_written_to_all_the_time_is_never_remembered_wrongly(places: dict[str, Place]) -> None:
    place = places["touched"]
    path = place.root / "lib" / "busy.py"
    path.write_bytes(b"000000")
    writer = subprocess.Popen([sys.executable, "-c", _WHILE, str(path)])
    try:
        taken = [place.take() for _ in range(10)]
    except FileChanged:
        taken = []
    finally:
        writer.kill()
        writer.wait()
    assert place.take().id == place.take(index="after all").id
    assert all(captured.files == taken[0].files for captured in taken)
