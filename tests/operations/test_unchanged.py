"""A workspace that is known from a glance is the one that a full look finds, whatever was done to it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from captures import Machine, say
from checkouts import git, write
from m5ws.adapters.dvc import Dvc
from m5ws.adapters.git import Git
from m5ws.operations import snapshot
from m5ws.ports import SourceState
from m5ws.repository import Repository, trees
from m5ws.repository.capture import FileChanged
from m5ws.settings import Settings
from m5ws.store.local import LocalStore
from settling import settle

SAID = say(config={"files": ["config.yaml", "local.yaml", "conf/*.yaml"]}, data={"paths": ["data"]})


class Counting(Git):
    """Git that counts full looks."""

    looks = 0

    def state(self, root: Path) -> SourceState:
        self.looks += 1
        return super().state(root)


class Place(NamedTuple):
    root: Path
    repo: Repository

    def take(self, said: Settings = SAID, index: str = "index", source: Git | None = None) -> snapshot.Captured:
        home = self.root / ".m5ws"
        datasets = Dvc()
        return snapshot.take(self.root, said, self.repo, source or Git(), datasets, None, Machine(), home / index)

    def looks(self) -> int:
        """Take a snapshot and return how often git was asked for everything."""
        source = Counting()
        self.take(source=source)
        return source.looks


def _quietly(path: Path, content: bytes) -> None:
    """Write as many bytes as there are, and leave the time of the change as it was."""
    found = path.stat()
    assert len(content) == found.st_size
    path.write_bytes(content)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def _replaced(path: Path, content: bytes) -> None:
    found = path.stat()
    other = path.with_name("other")
    other.write_bytes(content)
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(path)


def _then(*steps: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for step in steps:
            step(root)

    return change


def _add(root: Path) -> None:
    git(root, "add", ".")


def _config(name: str, value: str) -> Callable[[Path], object]:
    return lambda root: git(root, "config", name, value)


def _link(name: str, target: str) -> Callable[[Path], object]:
    return lambda root: (root / name).symlink_to(target)


def _unlink(name: str) -> Callable[[Path], object]:
    return lambda root: (root / name).unlink()


def _say(name: str, content: str) -> Callable[[Path], object]:
    return lambda root: write(root, {name: content})


def _as_long(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda root: _quietly(root / name, content)


def _git(*arguments: str) -> Callable[[Path], object]:
    return lambda root: git(root, *arguments)


_LOOK_AWAY = {"checkStat": "minimal", "trustctime": "false", "ignoreStat": "true", "fileMode": "false"}
CHANGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda root: None,
    "a line": _say("train.py", "print(22)\n"),
    "a byte, with the old time": _as_long("train.py", b"print(2)\n"),
    "a byte, of a file in a folder": _as_long("lib/a.py", b"b = 1\n"),
    "another file with the old time": lambda root: _replaced(root / "train.py", b"print(3)\n"),
    "touched": lambda root: (root / "train.py").touch(),
    "what a filter hides from git": lambda root: (root / "plain.txt").write_bytes(b"a\r\nb\r\n"),
    "a mode": lambda root: (root / "train.py").chmod(0o755),
    "a file less": _unlink("train.py"),
    "another name": lambda root: (root / "train.py").rename(root / "main.py"),
    "a file more": _say("lib/new.py", "x"),
    "an untracked file, as long": _as_long("draft.py", b"d = 2\n"),
    "an untracked file less": _unlink("draft.py"),
    "a link to elsewhere": _then(_unlink("latest"), _link("latest", "train.py")),
    "a link instead of a file": _then(_unlink("train.py"), _link("train.py", "lib/a.py")),
    "a folder instead of a file": _then(_unlink("train.py"), _say("train.py/x.py", "1")),
    "a rule to ignore": _say(".gitignore", "*.log\nlocal.yaml\n/data\ndraft.py\n"),
    "a rule less": _say(".gitignore", "*.log\n/data\n"),
    "a rule of this clone's": _say(".git/info/exclude", "draft.py\n"),
    "an ignored config file": _as_long("local.yaml", b"lr: 2\n"),
    "a config file behind a link": _as_long("elsewhere.log", b"b: 2\n"),
    "a config file more": _say("conf/b.yaml", "b: 1\n"),
    "data, as long": _as_long("data/x.bin", b"y"),
    "data more": _say("data/deep/z.bin", "z"),
    "staged": _then(_say("train.py", "print(4)\n"), _add),
    "staged, then back": _then(_say("train.py", "print(5)\n"), _add, _say("train.py", "print(1)\n")),
    "no more tracked": _git("rm", "-q", "--cached", "train.py"),
    "about to be added": _git("add", "-N", "draft.py"),
    "committed": _then(_say("train.py", "print(6)\n"), _git("commit", "-qam", "second")),
    "a commit of nothing": _git("commit", "-q", "--allow-empty", "-m", "second"),
    "another branch": _git("checkout", "-q", "-b", "topic"),
    "back by one commit": _git("reset", "-q", "--soft", "HEAD~1"),
    "no branch": _git("checkout", "-q", "--detach"),
    "another remote": _git("remote", "add", "origin", "https://example.org/a.git"),
    "a repository within": _then(_say("inner/a.py", "1"), lambda root: git(root / "inner", "init", "-q")),
    "assumed unchanged": _then(
        _git("update-index", "--assume-unchanged", "train.py"), _as_long("train.py", b"print(7)\n")
    ),
    "git told to look away": _then(
        *(_config(f"core.{name}", value) for name, value in _LOOK_AWAY.items()), _as_long("train.py", b"print(8)\n")
    ),
    "a mode, and git told to look away": _then(
        *(_config(f"core.{name}", value) for name, value in _LOOK_AWAY.items()),
        lambda root: (root / "lib" / "a.py").chmod(0o755),
    ),
    "a dataset that DVC tracks": lambda root: write(root, {"set.dvc": _PIN, "set": "hello world"}),
    "no index": _unlink(".git/index"),
}
_PIN = "outs:\n- md5: 5eb63bbbe01eeed093cb22bb8f5acdc3\n  path: set\n  hash: md5\n"
_OTHER_WORDS = {"another branch", "another remote", "no branch"}
_THE_SAME = {
    "nothing",
    "touched",
    "staged, then back",
    "no more tracked",
    "about to be added",
    "no index",
    *_OTHER_WORDS,
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    """Workspaces that are remembered, one for each change."""
    base = tmp_path_factory.mktemp("unchanged")
    files: dict[str, str | bytes] = {
        "train.py": "print(1)\n",
        "config.yaml": "lr: 1\n",
        "conf/a.yaml": "a: 1\n",
        "lib/a.py": "a = 1\n",
        "plain.txt": "a\nb\n",
        ".gitattributes": "*.txt text\n",
        ".gitignore": "*.log\nlocal.yaml\n/data\n",
    }
    made = {name: Place(base / str(number), _repository(base, number)) for number, name in enumerate(CHANGES)}
    for name, (root, _) in made.items():
        write(root, files)
        (root / "latest").symlink_to("lib/a.py")
        git(root, "init", "-q", "-b", "main")
        git(root, "commit", "-q", "--allow-empty", "-m", "nothing")
        git(root, "add", ".")
        git(root, "commit", "-q", "-m", "first")
        write(root, {"draft.py": "d = 1\n", "local.yaml": "lr: 1\n", "data/x.bin": "x", "elsewhere.log": "b: 1\n"})
        if name == "a config file behind a link":
            (root / "local.yaml").unlink()
            (root / "local.yaml").symlink_to("elsewhere.log")
    time.sleep(2.1)
    for place in made.values():
        place.take()
    return made


def _repository(base: Path, number: int) -> Repository:
    return Repository.create(LocalStore(base / f"store-{number}"))


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_known_from_a_glance_is_what_a_full_look_finds(places: dict[str, Place], change: str) -> None:
    place = places[change]
    before = place.take()
    CHANGES[change](place.root)
    glanced = place.take()
    looked = place.take(index="another index")
    assert (glanced.id, glanced.files, glanced.size_bytes) == (looked.id, looked.files, looked.size_bytes)
    assert glanced.snapshot == looked.snapshot
    assert (glanced.id == before.id) == (change in _THE_SAME)


def test_a_workspace_that_is_remembered_is_not_listed_again(places: dict[str, Place]) -> None:
    place = places["nothing"]
    assert place.looks() == 0
    (place.root / "train.py").touch()
    settle(place.root)
    assert (place.looks() > 0, place.looks()) == (True, 0)


def test_other_settings_are_another_workspace(places: dict[str, Place]) -> None:
    place = places["nothing"]
    place.take()
    left_out = say(code={"exclude": ["lib/"]}, config={"files": ["config.yaml"]}, data={"paths": ["data"]})
    assert place.take(left_out).id == place.take(left_out, index="yet another").id != place.take().id


def test_what_the_store_lost_is_written_again(places: dict[str, Place]) -> None:
    place = places["nothing"]
    whole = place.take()
    for found in list(place.repo.store.list("objects/")):
        place.repo.store.delete(found.key)
        captured = place.take()
        assert captured.id == whole.id
        for tree in captured.snapshot.trees.values():
            for entry in trees.located(place.repo.objects, tree).entries:
                trees.read_file(place.repo.objects, entry)


def test_a_change_in_the_second_in_which_git_wrote_its_index_is_seen(tmp_path: Path) -> None:
    """Where git would not see it, nothing is remembered."""
    place = Place(tmp_path / "w", Repository.create(LocalStore(tmp_path / "store")))
    write(place.root, {"train.py": "0000\n", "data/x": "x"})
    git(place.root, "init", "-q")
    for number in range(30):
        if number % 10 == 0:
            git(place.root, "add", "train.py")
            git(place.root, "commit", "-q", "--allow-empty", "-m", "git may not see what was changed within a second")
        _quietly(place.root / "train.py", b"%04d\n" % (number + 1))
        said = say(data={"paths": ["data"]})
        assert place.take(said).id == place.take(said, index=f"index-{number}").id


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


def test_a_file_that_is_written_to_all_the_time_is_never_remembered_as_it_is_not(places: dict[str, Place]) -> None:
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
