"""A store and a cache in the folder of a group: two users, each with any umask, and the mode and group of the root."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from m5ws.records.store import Format
from m5ws.repository.objects import Objects
from m5ws.store.local import LocalStore
from tests.conftest import loud_skip
from tests.support.paths import ROOT

_SCRIPT = Path(__file__).parent / "scripts" / "shared_folder.py"
_TEAM, _USERS, _STRANGER = 60_000, (60_001, 60_002), 60_003


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that all users can reach."""
    if os.geteuid():
        loud_skip("two Unix users: only root can become another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def _folder(place: Path, name: str, mode: int = 0o2770, owner: int = 0) -> Path:
    folder = place / name
    folder.mkdir()
    os.chown(folder, owner, _TEAM)
    folder.chmod(mode)
    return folder


def _use(user: int, umask: str, action: str, folder: Path, group: int = _TEAM) -> str:
    """Use a folder as a user, and return the error."""
    words = [sys.executable, str(_SCRIPT), str(user), str(group), umask, action, str(folder), str(user)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _modes(root: Path) -> set[tuple[bool, int, int]]:
    """Return type (True for a folder), mode and group of all files and folders below a root."""
    statuses = (path.lstat() for path in root.rglob("*"))
    return {(stat.S_ISDIR(one.st_mode), stat.S_IMODE(one.st_mode), one.st_gid) for one in statuses}


@pytest.mark.parametrize("umask", ["022", "027", "077"])
@pytest.mark.parametrize("mode", [0o2770, 0o770])
def test_two_users_share_a_store_whatever_their_umask_is(place: Path, umask: str, mode: int) -> None:
    root = _folder(place, "store", mode)
    assert [_use(user, umask, "store", root) for user in _USERS] == ["", ""]
    assert _modes(root) == {(True, mode, _TEAM), (False, 0o440, _TEAM)}


@pytest.mark.parametrize("umask", ["022", "077"])
def test_two_users_share_a_cache_whatever_their_umask_is(place: Path, umask: str) -> None:
    far, root = LocalStore(place / "far"), _folder(place, "cache")
    place.joinpath("far").mkdir(mode=0o755)
    objects = Objects(far, Format())
    objects.put(b"1")
    assert _use(_USERS[0], umask, "cache", root) == ""
    objects.put(b"2")
    assert _use(_USERS[1], umask, "cache", root) == ""
    assert _modes(root) == {(True, 0o2770, _TEAM), (False, 0o440, _TEAM), (False, 0o660, _TEAM)}


@pytest.mark.parametrize(("umask", "mode"), [(0o000, 0o700), (0o077, 0o755)])
def test_the_folders_of_a_user_keep_the_mode_of_their_root(tmp_path: Path, umask: int, mode: int) -> None:
    root = tmp_path / "store"
    root.mkdir()
    root.chmod(mode)
    before = os.umask(umask)
    try:
        LocalStore(root).create("objects/aa/aabb", b"data")
    finally:
        os.umask(before)
    assert {each[:2] for each in _modes(root)} == {(True, mode), (False, mode & 0o444)}


def test_a_denied_access_names_the_owner_the_mode_and_the_remedy(place: Path) -> None:
    root = _folder(place, "store", owner=_USERS[0])
    assert _use(_USERS[0], "022", "store", root) == ""
    closed = root / "objects"
    closed.chmod(0o2750)
    error = _use(_USERS[1], "022", "store", root)
    assert error.startswith(f"permission denied: {closed} belongs to {_USERS[0]} (group {_TEAM}, mode drwxr-s---)")
    assert f"Ask {_USERS[0]} to run `chmod -R g+rwX {closed}`." in error
    stranger = _use(_STRANGER, "022", "store", root, group=_STRANGER)
    assert f"{root} belongs to {_USERS[0]}" in stranger and f"Ask {_USERS[0]} for access" in stranger


def test_a_cache_of_another_user_is_named_with_its_owner(place: Path) -> None:
    place.joinpath("far").mkdir(mode=0o755)
    Objects(LocalStore(place / "far"), Format()).put(b"1")
    root = _folder(place, "cache", 0o700, owner=_USERS[0])
    error = _use(_USERS[1], "022", "cache", root)
    assert error.startswith("read without the cache: ")
    assert f"{root} belongs to {_USERS[0]} (group {_TEAM}, mode drwx------)" in error
