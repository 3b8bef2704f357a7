"""Locations of small files: existing packs are reused, history does not affect a tree, and false packings are
refused.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m5ws.errors import CorruptObject, NotFound
from m5ws.records.base import Digest
from m5ws.records.gc import RetentionRules
from m5ws.records.tree import Pack, Packing, Tree
from m5ws.repository.files import trees
from m5ws.repository.files.index import Index
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.materialise import materialise
from m5ws.repository.files.writer import FileChanged
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import roots
from m5ws.repository.publishing import ObjectDeleted
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import closure
from m5ws.store.local import LocalStore
from tests.support.files.small_files import FORM, Workspace, annotate, read
from tests.support.records import planted
from tests.support.stores.passing_store import PassingStore


def test_a_changed_file_alone_is_sent(tmp_path: Path) -> None:
    here, draw = Workspace(tmp_path), random.Random(1)
    here.fill(draw, range(400))
    first = here.packing(here.write())
    here.fill(draw, [200])
    changed = here.write()
    second = here.packing(changed)
    (new,) = [pack for pack in second.packs if pack not in first.packs]
    assert new.size_bytes == (here.files / "0200").stat().st_size
    assert {pack.object for pack in first.packs} < {pack.object for pack in second.packs}
    assert read(here.repo, changed, tmp_path / "read") == here.content()


def test_a_tree_is_the_same_whatever_the_store_had_before(tmp_path: Path) -> None:
    here, there = Workspace(tmp_path / "a"), Workspace(tmp_path / "b")
    here.fill(random.Random(1), range(100))
    here.write()
    here.fill(random.Random(2), range(0, 100, 7))
    there.fill(random.Random(1), range(100))
    there.fill(random.Random(2), range(0, 100, 7))
    mine, other = here.write(), there.write()
    assert mine.digest == other.digest and mine.packing != other.packing
    for number, (place, written) in enumerate(((here, mine), (there, other))):
        assert read(place.repo, written, tmp_path / f"{number}") == here.content()
    # The same files, packed independently, give the same packs.
    assert there.write(known=False).packing == other.packing


_Edits = st.lists(st.lists(st.integers(0, 40), max_size=40), max_size=6)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=_Edits, seed=st.integers(0, 100))
def test_reading_never_costs_more_than_twice_the_bytes_or_many_small_packs(
    tmp_path_factory: pytest.TempPathFactory, edits: list[list[int]], seed: int
) -> None:
    root = tmp_path_factory.mktemp("packs")
    here, draw = Workspace(root), random.Random(seed)
    here.fill(draw, range(40))
    for number, edit in enumerate([[], *edits]):
        for name in edit:
            (here.files / f"{name:04d}").unlink(missing_ok=True)
        here.fill(draw, edit[::2])
        written = here.write()
        if written.packing is None:
            assert not here.content()
            continue
        packs, content = here.packing(written).packs, here.content()
        assert sum(pack.size_bytes for pack in packs) <= 2 * sum(map(len, content.values()))
        assert sum(pack.size_bytes < FORM.pack_bytes // 4 for pack in packs) <= 17
        assert read(here.repo, written, root / f"read-{number}") == content
        assert written.digest == here.write(known=False).digest


def test_a_folder_that_was_moved_is_read_and_not_sent(tmp_path: Path) -> None:
    here = Workspace(tmp_path)
    here.fill(random.Random(1), range(200))
    here.write()
    here.fill(random.Random(2), [7])
    written = here.write()
    planted.publish(here.repo, planted.snapshot(written.digest))
    before = here.packing(written)
    here.files, here.repo = here.files.rename(tmp_path / "moved"), Repository.open(here.repo.store)
    moved = here.write()
    assert here.packing(moved) == before and moved.new_bytes == 0


def test_a_machine_reuses_only_packs_that_it_wrote(tmp_path: Path) -> None:
    """A new machine reads no annotations and packs of others: it uploads its small files once, then its changes."""
    here = Workspace(tmp_path)
    here.fill(random.Random(1), range(200))
    planted.publish(here.repo, planted.snapshot(here.write().digest))
    here.index.unlink()
    here.fill(random.Random(2), range(0, 200, 20))
    read_keys = list[str]()

    def before(operation: str, where: str) -> None:
        if operation in ("get", "list", "names") and where.startswith(("snapshots/", "objects/")):
            read_keys.append(where)

    store = here.repo.store
    here.repo = Repository.open(PassingStore(store, before))
    written = here.write()
    assert [where for where in read_keys if where.startswith("snapshots/")] == []
    here.repo = Repository.open(store)
    assert written.packing == here.write(known=False).packing
    here.fill(random.Random(3), [7])
    assert here.write().new_bytes < len(here.content()["0007"]) + 2**15
    assert read(here.repo, here.write(), tmp_path / "read") == here.content()


def test_small_changes_one_after_the_other_send_little_each(tmp_path: Path) -> None:
    """Packs made superfluous by joining no longer count.

    Otherwise each change after the sixteenth would join them again.
    """
    here, draw = Workspace(tmp_path), random.Random(5)
    here.fill(draw, range(400))
    before, joined = set(here.packing(here.write()).packs), 0
    for _ in range(60):
        here.fill(draw, [draw.randrange(400)])
        packs = set(here.packing(here.write()).packs)
        joined += any(len(pack.sizes_bytes) > 1 for pack in packs - before)
        before |= packs
    assert 1 <= joined <= 4


def test_what_replaces_a_lost_packing_is_all_that_is_needed_then(tmp_path: Path) -> None:
    here = Workspace(tmp_path)
    here.fill(random.Random(1), range(200))
    here.write()
    here.fill(random.Random(2), [7, 70])
    written = here.write()
    snapshot = planted.publish(here.repo, planted.snapshot(written.digest))
    lost = here.irreplaceable(written)
    for digest in (written.packing, lost.object):
        here.repo.store.delete(f"objects/{str(digest)[:2]}/{digest}")
    with pytest.raises(NotFound):
        roots.read(here.repo, RetentionRules(), lambda *_: False)
    again = here.write()
    planted.publish(here.repo, planted.snapshot(again.digest), created_s=2.0)
    fresh = Repository.open(here.repo.store)
    assert fsck.check(fresh).clean
    reach = roots.read(fresh, RetentionRules(), lambda *_: False).reach.digests
    assert {bytes.fromhex(pack.object) for pack in here.packing(again).packs} <= reach
    assert again.packing in closure.closure(fresh, "snapshot", snapshot)
    assert again.digest == written.digest and read(fresh, again, tmp_path / "read") == here.content()


def test_a_look_that_writes_nothing_is_no_word_on_where_files_lie(tmp_path: Path) -> None:
    """Files with future stamps are read at each check. A check without upload may use other packs."""
    here = Workspace(tmp_path)
    for generation in range(24):
        here.fill(random.Random(generation), [generation])
        path = here.files / f"{generation:04d}"
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime + 3600))
        sources = planted.sources(here.files, os.listdir(here.files))
        with Index(here.index) as index:
            written = trees.write_tree(here.repo.objects, here.repo.locations, sources, index)
            assert trees.is_still(here.repo.objects, here.repo.locations, sources, index, written.digest)
        snapshot = planted.publish(here.repo, planted.snapshot(written.digest))
        (said,) = snapshots.annotations(here.repo, snapshot)
        assert set(said.packings.values()) == {written.packing}
    assert fsck.check(here.repo).clean


def test_a_packing_that_was_never_written_is_not_published(tmp_path: Path) -> None:
    repo = Repository.create(LocalStore(tmp_path / "store"))
    tree = planted.packed(repo, {b"a": b"content"})
    repo.locations.add_tree(tree, "3" * 64)
    with pytest.raises(ObjectDeleted):
        planted.publish(repo, planted.snapshot(tree))
    assert repo.store.names("snapshots/") == ()


def test_a_file_that_grows_or_shrinks_over_the_limit_meanwhile_is_not_captured_by_halves(tmp_path: Path) -> None:
    here = Workspace(tmp_path)
    for name, now, then in (("grows", 10, 2000), ("shrinks", 2000, 10)):
        path = here.files / name
        path.write_bytes(bytes(now))
        seen = SourceFile(path=name.encode(), location=path, found=os.lstat(path))
        path.write_bytes(bytes(then))
        with pytest.raises(FileChanged):
            trees.write_tree(here.repo.objects, here.repo.locations, [seen])


# --- false packings --------------------------------------------------------------------------------

Lie = Callable[[Repository, Pack], Packing]


def _pack(pack: Pack, **fields: object) -> Packing:
    return Packing(packs=(msgspec.structs.replace(pack, **fields),))


def _other(repo: Repository, pack: Pack) -> Packing:
    data = b"x" * pack.size_bytes
    return _pack(pack, object=repo.objects.put(data))


LIES: dict[str, tuple[Lie, str, tuple[str, ...]]] = {
    "nothing": (lambda repo, pack: Packing(packs=()), "does not contain", ("dangling",)),
    "another file": (lambda repo, pack: _pack(pack, files=b"\1" * 32), "does not contain", ("dangling", "corrupt")),
    "half a digest": (lambda repo, pack: _pack(pack, files=pack.files[:16]), "number", ("unreadable",)),
    "a size too many": (lambda repo, pack: _pack(pack, sizes_bytes=(7, 7)), "number", ("unreadable",)),
    "no files": (lambda repo, pack: _pack(pack, files=b"", sizes_bytes=()), "number", ("unreadable",)),
    "another size": (lambda repo, pack: _pack(pack, sizes_bytes=(6,)), "7 bytes", ("dangling", "corrupt")),
    "20 GB": (
        lambda repo, pack: _pack(pack, files=pack.files * 5, sizes_bytes=(4 * 2**30,) * 5),
        "21474836480 bytes",
        ("unreadable",),
    ),
    "other bytes": (_other, "digest", ("corrupt",)),
    "a pack that is not there": (lambda repo, pack: _pack(pack, object="2" * 64), "2" * 64, ("missing",)),
}


@pytest.mark.parametrize(("lie", "saying", "kinds"), LIES.values(), ids=LIES.keys())
def test_a_packing_that_lies_is_refused_and_named(
    tmp_path: Path, lie: Lie, saying: str, kinds: tuple[str, ...]
) -> None:
    repo = Repository.create(LocalStore(tmp_path / "store"))
    tree = planted.packed(repo, {b"a": b"content"})
    packing = trees.packing_of(repo.objects, repo.locations, tree)
    assert packing is not None
    (pack,) = repo.objects.get_record(packing, Packing).packs
    snapshot = repo.objects.put_record(planted.snapshot(tree))
    lied = repo.objects.put_record(lie(repo, pack))
    annotate(repo, snapshot, {tree: lied})
    fresh = Repository.open(repo.store)
    with pytest.raises((CorruptObject, NotFound), match=saying):
        _checkout(fresh, snapshot, tmp_path / "target")
    damage = fsck.check(fresh).damage
    assert tuple(sorted(one.kind for one in damage)) == tuple(sorted(kinds))
    assert all(f"snapshot {snapshot}" in one.harms for one in damage)


def test_a_tree_of_which_nobody_says_where_it_lies_is_named(tmp_path: Path) -> None:
    repo = Repository.create(LocalStore(tmp_path / "store"))
    tree = planted.packed(repo, {b"a": b"content"})
    snapshot = repo.objects.put_record(planted.snapshot(tree))
    annotate(repo, snapshot, {})
    fresh = Repository.open(repo.store)
    with pytest.raises(NotFound, match=tree):
        trees.located(fresh.objects, fresh.locations, snapshots.load(fresh, snapshot).code.tree)
    (damage,) = fsck.check(fresh).damage
    assert damage.kind == "dangling" and tree in damage.key and damage.harms == (f"snapshot {snapshot}",)


def test_one_sound_packing_of_several_is_enough_and_all_are_copied(tmp_path: Path) -> None:
    repo = Repository.create(LocalStore(tmp_path / "store"))
    tree = planted.packed(repo, {b"a": b"content"})
    packing = trees.packing_of(repo.objects, repo.locations, tree)
    assert packing is not None
    snapshot = repo.objects.put_record(planted.snapshot(tree))
    annotate(repo, snapshot, {tree: packing}, 1)
    annotate(repo, snapshot, {tree: repo.objects.put_record(Packing(packs=()))}, 2)
    annotate(repo, snapshot, {tree: repo.objects.put(b"\x81\xa4type\xa9packing/9")}, 3)
    repo.store.create(f"snapshots/{snapshot}/{4:014d}-00000000", b"damaged")
    fresh = Repository.open(repo.store)
    found = trees.located(fresh.objects, fresh.locations, snapshots.load(fresh, snapshot).code.tree)
    assert trees.read_file(fresh.objects, fresh.locations, found.entries[0]) == b"content"
    repo.store.delete(f"snapshots/{snapshot}/{4:014d}-00000000")
    assert fsck.check(fresh).clean
    assert {packing, tree, repo.objects.digest(b"content")} <= closure.closure(fresh, "snapshot", snapshot).keys()


def test_a_small_file_in_chunks_is_refused(tmp_path: Path) -> None:
    repo = Repository.create(LocalStore(tmp_path / "store"))
    digest = repo.objects.put_record(Tree(entries=(planted.file(repo.objects, b"a", b"content"),)))
    with pytest.raises(CorruptObject, match=f"{digest}.*chunks"):
        trees.load(repo.objects, digest)


def _checkout(repo: Repository, snapshot: Digest, target: Path) -> None:
    materialise(
        repo.objects,
        repo.locations,
        [trees.located(repo.objects, repo.locations, snapshots.load(repo, snapshot).code.tree)],
        target,
    )
