"""The objects remembered by a process: enough to avoid repeated checks, and limited in number."""

import pytest

from m5ws.errors import NotFound
from m5ws.repository import objects
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.stores.passing_store import PassingStore


def test_a_limited_number_of_stored_objects_is_remembered(
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


def test_the_error_for_a_missing_object_names_the_store_and_the_check(repo: Repository) -> None:
    with pytest.raises(NotFound) as missing:
        repo.objects.get("a" * 64)
    assert (
        repo.store.url in str(missing.value)
        and f"`m5ws fsck` in a workspace of the store {repo.store.url}" in missing.value.hint
    )
