"""Directories with foreign content, and invalid targets: refused or skipped, never followed."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from m5ws.repository.references.checkpoints import name
from tests.support.faults.hostile import RUN, World

PLAN = "20260101T000000Z-00000000"
_LABEL = name(1, 1)


# --- directories -------------------------------------------------------------------------------------------


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path has at most a hundred bytes
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(path.name)
    finally:
        os.chdir(here)


def _sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(10**13)


def _folder(path: Path) -> None:
    """With content: an empty directory, left by a kill, contains no object."""
    path.mkdir()
    (path / "x").write_bytes(b"x")


def _linked(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


THINGS: dict[str, Callable[[Path], None]] = {
    "a FIFO": os.mkfifo,
    "a socket": _socket,
    "a folder": _folder,
    "10 TB of nothing": _sparse,
    "a link to a file": _linked("/etc/passwd"),
    "a dangling link": _linked("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a device": _linked("/dev/zero"),
}


@pytest.mark.parametrize("thing", THINGS.values(), ids=THINGS.keys())
@pytest.mark.parametrize("where", ["format", "object", "run", "batch"])
def test_a_special_file_in_place_of_a_stored_file_is_refused(
    world: World, where: str, thing: Callable[[Path], None]
) -> None:
    snapshot = world.sound()
    tree = next(stat.key for stat in world.repo.store.list("objects/") if _is_tree(world, stat.key))
    places = {"format": "format", "object": tree, "run": f"runs/{RUN}/run"}
    place = world.store_dir / places.get(where, f"runs/{RUN}/ledger/0001/0/00000000")
    place.unlink()
    thing(place)
    named = "format" if where == "format" else place.name if where == "object" else f"runs/{RUN}"
    if where == "object":
        world.refused("checkout", snapshot, str(world.out / "target"), saying=place.name, status=3)
        world.refused("push", snapshot, "--to", str(world.out / "pushed"), saying=place.name, status=3)
    elif where == "format":
        for arguments in (("ls",), ("fsck",), ("show", snapshot)):
            answer = world.m5ws(*arguments)
            assert answer.status in (2, 3) and len(answer.errors) == 1 and str(world.store_dir) in answer.err
        return
    elif where == "run":
        world.refused("show", RUN, saying="run", status=3)
    else:
        world.refused("show", RUN, saying=named, status=3)
    assert named in " ".join(damage["key"] for damage in world.damage())


def _is_tree(world: World, where: str) -> bool:
    data = world.repo.store.get(where)
    return b"tree/3" in data and b"\xa4path" in data and b"\xc4\x01x" in data


def test_gc_deletes_nothing_behind_a_link(world: World) -> None:
    """A folder of objects may be a link to the folder of another store."""
    world.sound()
    digest = world.put(b"nobody names this")
    folder = world.store_dir / "objects" / digest[:2]
    folder.rename(world.victim / "objects")
    folder.symlink_to(world.victim / "objects")
    for older in ("--older-than", "--grace"):
        world.m5ws("gc", older, "0s")
    assert (world.victim / "objects" / digest).exists()


def test_a_sweep_removes_nothing_behind_a_link(world: World) -> None:
    world.sound()
    shutil.rmtree(world.store_dir / "tmp")
    (world.store_dir / "tmp").symlink_to(world.victim / "folder")
    world.fine("ls")
    assert (world.victim / "folder" / "old").read_text() == "mine"


@pytest.mark.parametrize("folder", ["tmp", "objects", "snapshots", "runs", "objects/xx"])
def test_nothing_is_pushed_through_a_link(world: World, folder: str) -> None:
    world.sound()
    other = world.out / "other"
    (other / "objects").mkdir(parents=True)
    shutil.copy(world.store_dir / "format", other / "format")
    names = [folder]
    if folder == "objects":
        (other / "objects").rmdir()
    if folder == "objects/xx":
        names = [f"objects/{stat.key[8:10]}" for stat in world.repo.store.list("objects/")]
    for one in dict.fromkeys(names):
        (other / one).symlink_to(world.victim / "folder")
    world.refused("push", "--all", "--to", str(other), saying="link", status=3)
    assert (world.victim / "folder" / "old").read_text() == "mine"


# --- targets -----------------------------------------------------------------------------------------------


def _full(path: Path) -> None:
    path.mkdir()
    (path / "mine").write_text("mine")


def _full_of(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def fill(path: Path) -> None:
        path.mkdir()
        make(path / "x")

    return fill


TARGETS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file": (lambda path: path.write_text("mine"), "not a folder"),
    "a FIFO": (os.mkfifo, "not a folder"),
    "a socket": (_socket, "not a folder"),
    "a dangling link": (_linked("nowhere"), "not a folder"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "not a folder"),
    "a link to a device": (_linked("/dev/null"), "not a folder"),
    "a folder that is not empty": (_full, "empty"),
    "a folder with a FIFO in it": (_full_of(os.mkfifo), "empty"),
    "a folder with a socket in it": (_full_of(_socket), "empty"),
    "a folder with a dangling link in it": (_full_of(_linked("nowhere")), "empty"),
    "a link to a folder of others": (_linked("../victim"), "empty"),
}


def _seen(target: Path) -> list[tuple[int, ...]]:
    """Return the state of a target and its content, except access times."""
    found = [os.lstat(path) for path in (target, *sorted(target.glob("*")))]
    return [(one.st_mode, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for one in found]


@pytest.mark.parametrize(("make", "saying"), TARGETS.values(), ids=TARGETS.keys())
def test_checkout_refuses_a_target_that_is_no_empty_folder(
    world: World, make: Callable[[Path], object], saying: str
) -> None:
    snapshot = world.sound()
    target = world.out / "target"
    make(target)
    before = _seen(target)
    world.refused("checkout", snapshot, str(target), saying=saying, status=2)
    assert _seen(target) == before


@pytest.mark.parametrize("target", ["/proc/hostile", "/dev/null/x", "format"])
def test_a_target_that_cannot_be_created_is_named_in_the_error(world: World, target: str) -> None:
    snapshot = world.sound()
    place = str(world.store_dir / "format" / "x") if target == "format" else target
    world.refused("checkout", snapshot, place, saying=place, status=2)


def test_a_file_system_that_refuses_names_the_path(world: World) -> None:
    """Below a deep folder, an allowed path is too long for the kernel."""
    snapshot = world.snapshot(world.tree(world.file(b"/".join([b"n" * 200] * 19))))
    world.refused("checkout", snapshot, str(world.out / "/".join(["d" * 200] * 3)), saying=str(world.out), status=2)
