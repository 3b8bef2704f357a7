"""Objects: those remembered by a process are limited in number, and memory is filled with verified bytes alone."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from m5ws.errors import CorruptObject
from m5ws.records.tree import Slice
from m5ws.repository import objects
from m5ws.repository.repository import Repository
from m5ws.store.cache.cache import CachedStore
from m5ws.store.local import LocalStore
from tests.support.stores.passing_store import PassingStore


def test_what_was_seen_to_be_there_is_remembered_up_to_a_limit(
    store: LocalStore, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_SEEN_MOST", 4)
    asked: list[str] = []
    watched = Repository(PassingStore(store, lambda operation, key: asked.append(key)), repo.format)
    contents = [bytes([number]) for number in range(5)]
    for content in contents[:4]:
        watched.objects.put_if_absent(content)
    asked.clear()
    for content in contents[:4]:
        watched.objects.put_if_absent(content)
    assert asked == []
    for content in contents:
        watched.objects.put_if_absent(content)
    assert len(watched.objects._seen) == 1
    assert [watched.objects.get(watched.objects.digest(content)) for content in contents] == contents


DATA = os.urandom(3 * 2**20 + 17)
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "changed": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "short": lambda data: data[:-1],
    "empty": lambda _: b"",
}


def part(repo: Repository, start: int, end: int) -> Slice:
    """Store DATA, and return its slice."""
    digest = repo.objects.put(DATA)
    return Slice(object=digest, offset=start, size_bytes=end - start, digest=repo.objects.digest(DATA[start:end]))


def damage(root: Path, digest: str, how: str) -> None:
    """Replace the file of an object."""
    path = root / objects.key(digest)
    path.unlink()
    path.write_bytes(DAMAGE[how](DATA))


@pytest.mark.parametrize(("start", "end"), [(0, len(DATA)), (5, 2**20 + 6), (len(DATA) - 1, len(DATA)), (7, 7)])
def test_memory_is_filled_with_a_slice(repo: Repository, start: int, end: int) -> None:
    memory = bytearray(end - start)
    repo.objects.fill(part(repo, start, end), memoryview(memory))
    assert memory == DATA[start:end]


@pytest.mark.parametrize("how", DAMAGE)
def test_memory_is_not_filled_from_a_damaged_object_without_an_error(
    store: LocalStore, repo: Repository, how: str
) -> None:
    whole = part(repo, 0, len(DATA))
    damage(store.root, whole.object, how)
    with pytest.raises(CorruptObject):
        repo.objects.fill(whole, memoryview(bytearray(len(DATA))))


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_copy_in_the_cache_is_read_again_from_the_store(
    store: LocalStore, repo: Repository, tmp_path: Path, how: str
) -> None:
    whole, memory = part(repo, 0, len(DATA)), bytearray(len(DATA))
    near = repo.with_store(CachedStore(store, tmp_path / "cache", 2**30))
    near.objects.get(whole.object)
    damage(tmp_path / "cache", whole.object, how)
    near.objects.fill(whole, memoryview(memory))
    assert memory == DATA
