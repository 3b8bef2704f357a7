"""A snapshot with an index of known files equals a snapshot that reads every file, whatever was changed."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from m5ws.repository.files import trees
from m5ws.repository.files.writer import FileChanged
from m5ws.repository.repository import Repository
from m5ws.snapshot import snapshot
from m5ws.snapshot.sources.dvc import Dvc
from m5ws.snapshot.sources.git import Git
from m5ws.store.local import LocalStore
from tests.support.faults.settling import settle
from tests.support.workspace.captures import Machine, make_settings
from tests.support.workspace.workspace_changes import CHANGES, THE_SAME, make

_SETTINGS = make_settings(config={"files": ["config.yaml", "local.yaml", "conf/*.yaml"]}, data={"paths": ["data"]})


class Place(NamedTuple):
    root: Path
    repo: Repository

    def take(self, index: str = "index") -> snapshot.CapturedSnapshot:
        home = self.root / ".m5ws"
        return snapshot.take(self.root, _SETTINGS, self.repo, Git(), Dvc(), None, Machine(), home / index)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    """Workspaces with an index of their files, one for each change."""
    base = tmp_path_factory.mktemp("unchanged")
    made = {name: Place(base / str(number), _repository(base, number)) for number, name in enumerate(CHANGES)}
    for name, (root, _) in made.items():
        make(root, name)
        settle(root)
    for place in made.values():
        place.take()
    return made


def _repository(base: Path, number: int) -> Repository:
    return Repository.create(LocalStore(base / f"store-{number}"))


@pytest.mark.parametrize("change", CHANGES)
def test_a_snapshot_of_known_files_equals_a_snapshot_by_full_capture(places: dict[str, Place], change: str) -> None:
    place = places[change]
    before = place.take()
    CHANGES[change](place.root)
    known = place.take()
    read = place.take(index="another index")
    assert (known.id, known.files, known.size_bytes) == (read.id, read.files, read.size_bytes)
    assert known.snapshot == read.snapshot
    assert (known.id == before.id) == (change in THE_SAME)


def test_objects_that_the_store_lost_are_written_again_if_all_files_are_read(places: dict[str, Place]) -> None:
    place = places["nothing"]
    whole = place.take()
    for number, stat in enumerate(list(place.repo.store.list("objects/"))):
        place.repo.store.delete(stat.key)
        captured = place.take(index=f"index {number}")
        assert captured.id == whole.id
        for tree in captured.snapshot.trees.values():
            for entry in trees.load(place.repo.objects, tree).entries:
                trees.read_file(place.repo.objects, entry)


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


def test_the_index_keeps_no_stale_entry_of_a_constantly_written_file(places: dict[str, Place]) -> None:
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
