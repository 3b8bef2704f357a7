"""A directory that stops being a store: its file system was unmounted, or the folder was moved."""

import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore, StoreGone

_OPERATIONS: dict[str, Callable[[LocalStore], object]] = {
    "create": lambda store: store.create("objects/aa", b"new"),
    "get": lambda store: store.get("format"),
    "stat": lambda store: store.stat("format"),
    "list": lambda store: list(store.list("runs/")),
    "names": lambda store: store.names("runs/"),
}


@pytest.mark.parametrize("operation", _OPERATIONS)
@pytest.mark.parametrize("opened", [True, False])
def test_a_missing_store_is_an_error_and_is_not_created_again(tmp_path: Path, operation: str, opened: bool) -> None:
    store = LocalStore(tmp_path / "mounted" / "store")
    Repository.create(store)
    if opened:
        store = LocalStore(store.root)
        Repository.open(store)
    store.root.parent.rename(tmp_path / "away")
    store.root.parent.mkdir()
    with pytest.raises(StoreGone, match=r"mounted/store"):
        _OPERATIONS[operation](store)
    assert list(store.root.parent.iterdir()) == []
    store.root.parent.rmdir()
    (tmp_path / "away").rename(store.root.parent)
    store.create("objects/ab", b"now")
    assert store.get("objects/ab") == b"now"


@pytest.mark.parametrize("operation", ["create", "now"])
def test_a_store_that_goes_at_any_moment_of_a_write_is_not_created_again(tmp_path: Path, operation: str) -> None:
    operations = _OPERATIONS | {"now": LocalStore.now}
    ends: list[str] = []
    while "present" not in ends:
        ends.append(_goes_at_call(tmp_path / str(len(ends)), operations[operation], len(ends) + 1))
    assert len(ends) > 20 and set(ends[:-1]) == {"gone"}


def _goes_at_call(folder: Path, operation: Callable[[LocalStore], object], call: int) -> str:
    """Move a store away at a numbered call of a C function, and return the state after the operation."""
    store, calls = LocalStore(folder / "mounted" / "store", durable=False), 0
    Repository.create(store)
    away = folder / "away"

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "c_call"
        if calls == call and store.root.exists():
            store.root.rename(away)

    sys.setprofile(profile)
    try:
        with suppress(OSError, StoreGone):
            operation(store)
    finally:
        sys.setprofile(None)
    if away.exists():
        return "created again" if store.root.exists() else "gone"
    return "present"


def test_create_syncs_bytes_before_the_key_and_the_folder_before_its_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, done = LocalStore(tmp_path / "store"), list[str]()
    store.create("objects/aa", b"the folder is there now")
    fsync, link = os.fsync, os.link

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "bytes")

    def linked(source: Path, target: Path) -> None:
        link(source, target)
        done.append("key")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    store.create("objects/ab", b"new")
    assert done == ["bytes", "key", "folder"]
