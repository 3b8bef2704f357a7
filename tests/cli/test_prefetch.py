"""`m5ws prefetch`: afterwards, only references are read from the store."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from m5ws import workspace
from m5ws.errors import M5Error
from m5ws.repository.files import materialise, trees
from m5ws.repository.objects import key, write_parts
from m5ws.repository.references import runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import closure, prefetch
from m5ws.store.cache.cache import CachedStore
from tests.support.records import contents, planted
from tests.support.stores.counting_store import CountingStore


@pytest.fixture
def cache(place: Path, made: Any) -> Path:
    """A cache that the workspace asks for before its directory."""
    with open(place / "m5ws.toml", "a") as file:
        file.write("[store]\ncache = 'near'\n")
    return place / "near"


def test_a_checkout_after_prefetch_reads_no_object_from_the_store(m5: Any, made: Any, cache: Path, place: Path) -> None:
    before = m5("prefetch", made.snapshot, "--dry-run", "--json").document
    assert before["missing"] > 0 and before["missing_bytes"] > 0 and not before["fetched"]
    done = m5("prefetch", made.snapshot, "--json").document
    assert done["missing"] == before["missing"] and done["fetched"]
    again = m5("prefetch", made.snapshot, "--json").document
    assert (again["missing"], again["missing_bytes"]) == (0, 0)
    shutil.rmtree(place / ".m5ws" / "store" / "objects")
    assert m5("checkout", made.snapshot, place / "out").status == 0
    assert (place / "out" / "config.yaml").read_text() == "lr: 0.1\n"
    assert m5("checkout", made.changed, place / "other").status == 3


def test_prefetch_prints_the_missing_and_the_fetched_objects(m5: Any, made: Any, cache: Path) -> None:
    assert "are missing" in m5("prefetch", made.run, "--dry-run").out
    done = m5("prefetch", made.run)
    assert done.status == 0 and f"run {made.run} needs" in done.out and "were fetched" in done.out


def test_a_directory_store_needs_no_prefetch(m5: Any, made: Any) -> None:
    done = m5("prefetch", made.run)
    assert done.status == 0 and "nothing to fetch" in done.out
    assert m5("prefetch", made.run, "--json").document["cached"] is False


def test_a_cache_limit_that_is_too_small_is_refused_before_any_fetch(
    m5: Any, made: Any, cache: Path, place: Path
) -> None:
    (place / "m5ws.toml").write_text("[store]\ncache = 'near'\ncache_limit = 100\n")
    done = m5("prefetch", made.snapshot)
    assert done.status == 2 and "cache_limit" in done.err and " 94\n" in done.err
    dry = m5("prefetch", made.snapshot, "--dry-run")
    assert dry.status == 0 and "cache_limit" in dry.out
    assert m5("prefetch", made.snapshot, "--dry-run", "--json").document["fits"] is False


def _blob(repo: Repository, made: Any, step: int) -> str:
    """Publish a checkpoint with bytes of its own, and return the object that holds them."""
    blob = write_parts(repo.objects, [("w", bytes([step]) * 5000)])["w"][0]
    planted.checkpoint(repo, made.run, step, contents.content(repo.objects, world=1, blobs={"w": blob}))
    return blob.object


def test_prefetch_of_a_run_includes_only_its_newest_checkpoint(made: Any, home: Repository) -> None:
    older, newest = _blob(home, made, 5), _blob(home, made, 7)
    needs = closure.start(home, "run", made.run)
    assert newest in needs and older not in needs
    assert needs.items() >= closure.closure(home, "snapshot", made.snapshot).items()
    assert older in closure.closure(home, "run", made.run)


def test_prefetch_caches_all_objects_that_a_start_from_the_run_reads(
    made: Any, home: Repository, tmp_path: Path
) -> None:
    blob = _blob(home, made, 7)
    far = CountingStore(home.store)
    repo = Repository.open(CachedStore(far, tmp_path / "near", 2**30))
    prefetch.apply(repo, prefetch.plan(repo, "run", made.run))
    # References are always read from the store. Nothing else is.
    far.gets.clear()
    snapshot = snapshots.load(repo, made.snapshot)
    assert far.gets == _references(far)
    far.gone = True
    loaded = [trees.load(repo.objects, tree) for tree in snapshot.trees.values()]
    materialise.materialise(repo.objects, loaded, tmp_path / "out")
    assert repo.objects.get(blob) == bytes([7]) * 5000
    assert runs.load(home, made.run).snapshot == made.snapshot


def test_an_interrupted_prefetch_continues_with_the_missing_objects(
    made: Any, home: Repository, tmp_path: Path
) -> None:
    far = CountingStore(home.store)
    repo = Repository.open(CachedStore(far, tmp_path / "near", 2**30))
    planned = prefetch.plan(repo, "snapshot", made.snapshot)
    first = next(iter(planned.fetch))
    repo.objects.get(first)
    far.gets.clear()
    prefetch.apply(repo, prefetch.plan(repo, "snapshot", made.snapshot))
    assert key(first) not in far.gets and len(far.gets) == planned.missing - 1 + len(_references(far))


def _references(far: CountingStore) -> list[str]:
    return [where for where in far.gets if not where.startswith("objects/")]


def test_a_cache_that_keeps_nothing_is_an_error(made: Any, home: Repository, tmp_path: Path) -> None:
    (tmp_path / "near").write_text("in the way")
    repo = Repository.open(CachedStore(home.store, tmp_path / "near", 2**30))
    with pytest.raises(M5Error, match=r"objects are not in the cache .*near.*File exists"):
        prefetch.apply(repo, prefetch.plan(repo, "snapshot", made.snapshot))


def test_fsck_reads_objects_from_the_store_and_not_from_the_cache(m5: Any, made: Any, cache: Path, place: Path) -> None:
    m5("prefetch", made.snapshot)
    repo = workspace.find(place, {}).repository()
    tree = snapshots.load(repo, made.snapshot).code.tree
    where = place / ".m5ws" / "store" / key(tree)
    where.chmod(0o644)
    where.write_bytes(b"damaged")
    assert repo.objects.get(tree)
    assert m5("fsck").status == 1
