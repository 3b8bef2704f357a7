"""Small files in packs: a tree with its packs depends on its files alone, and false packs are refused."""

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
from m5ws.records.tree import Entry, Pack, Tree
from m5ws.repository.files import trees
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.materialise import materialise
from m5ws.repository.files.writer import FileChanged
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import roots
from m5ws.repository.objects import key
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.files.small_files import FORM, Workspace, read
from tests.support.records import planted


def test_a_changed_file_sends_its_pack_alone(tmp_path: Path) -> None:
    here, draw = Workspace(tmp_path), random.Random(1)
    here.fill(draw, range(400))
    first = here.packs(here.write())
    here.fill(draw, [200])
    changed = here.write()
    second = here.packs(changed)
    assert 1 <= len(set(second) - set(first)) <= 2 < len(second) // 2
    assert changed.new_bytes <= 2 * FORM.pack_bytes + len(here.repo.objects.get(changed.digest))
    assert read(here.repo, changed, tmp_path / "read") == here.content()


_Edits = st.lists(st.lists(st.integers(0, 40), max_size=40), max_size=6)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=_Edits, seed=st.integers(0, 100))
def test_a_tree_is_the_same_whatever_the_index_and_the_store_had_before(
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
        assert all(len(here.repo.objects.get(pack.object)) <= FORM.pack_bytes for pack in here.packs(written))
        assert read(here.repo, written, root / f"read-{number}") == here.content()
        assert written.digest == here.write(known=False).digest


def test_a_folder_that_was_moved_is_read_and_not_sent(tmp_path: Path) -> None:
    here = Workspace(tmp_path)
    here.fill(random.Random(1), range(200))
    written = here.write()
    here.files, here.repo = here.files.rename(tmp_path / "moved"), Repository.open(here.repo.store)
    moved = here.write()
    assert moved.digest == written.digest and moved.new_bytes == 0


@pytest.mark.parametrize("known", [True, False])
def test_taking_a_snapshot_again_restores_a_lost_pack(tmp_path: Path, known: bool) -> None:
    here = Workspace(tmp_path)
    here.fill(random.Random(1), range(200))
    written = here.write()
    snapshot = planted.publish(here.repo, planted.snapshot(written.digest))
    lost = here.packs(written)[1].object
    here.repo.store.delete(key(lost))
    (damage,) = fsck.check(here.repo).damage
    assert (damage.kind, damage.key, damage.harms) == ("missing", key(lost), (f"snapshot {snapshot}",))
    assert here.write(known=known).digest == written.digest
    assert fsck.check(here.repo).clean and read(here.repo, written, tmp_path / "read") == here.content()
    assert bytes.fromhex(lost) in roots.read(here.repo, RetentionRules(), lambda *_: False).reach.digests


def test_a_lost_pack_of_a_changed_tree_is_written_again(tmp_path: Path) -> None:
    here = Workspace(tmp_path)
    here.fill(random.Random(1), range(200))
    lost = here.packs(here.write())[0].object
    here.repo.store.delete(key(lost))
    here.fill(random.Random(2), [199])
    written = here.write()
    assert lost in {pack.object for pack in here.packs(written)}
    assert read(here.repo, written, tmp_path / "read") == here.content()


def test_a_rewritten_tree_is_the_tree_of_its_files(tmp_path: Path) -> None:
    here = Workspace(tmp_path)
    here.fill(random.Random(1), range(200))
    before = trees.load(here.repo.objects, here.write().digest)
    contents = {b"0007": b"changed", b"0150": b"", b"0199": bytes(3000)}
    rewritten = trees.rewrite_tree(here.repo.objects, before.entries, contents, before.packs)
    for name, data in contents.items():
        (here.files / os.fsdecode(name)).write_bytes(data)
    assert rewritten == here.write(known=False).digest
    assert trees.rewrite_tree(here.repo.objects, before.entries, {}, ()) == here.repo.objects.put_record(
        _stored(here.repo, before)
    )


def _stored(repo: Repository, tree: Tree) -> Tree:
    small = repo.format.small_bytes
    entries = (msgspec.structs.replace(e, parts=()) if e.size_bytes < small else e for e in tree.entries)
    return msgspec.structs.replace(tree, entries=tuple(entries))


def test_a_file_that_grows_or_shrinks_over_the_limit_meanwhile_is_not_captured_by_halves(tmp_path: Path) -> None:
    here = Workspace(tmp_path)
    for name, now, then in (("grows", 10, 2000), ("shrinks", 2000, 10)):
        path = here.files / name
        path.write_bytes(bytes(now))
        seen = SourceFile(path=name.encode(), location=path, found=os.lstat(path))
        path.write_bytes(bytes(then))
        with pytest.raises(FileChanged):
            trees.write_tree(here.repo.objects, [seen])


# --- false packs -----------------------------------------------------------------------------------

Lie = Callable[[Repository, Tree], Tree]


def _packs(tree: Tree, *packs: Pack) -> Tree:
    return msgspec.structs.replace(tree, packs=packs)


def _pack(tree: Tree, **fields: object) -> Tree:
    return _packs(tree, msgspec.structs.replace(tree.packs[0], **fields))


def _sized(tree: Tree, *sizes: int) -> Tree:
    """Return the tree with more files, of other sizes."""
    more = [
        Entry(path=b"b%d" % number, mode="file", size_bytes=size, digest=tree.entries[0].digest)
        for number, size in enumerate(sizes)
    ]
    return msgspec.structs.replace(tree, entries=(*tree.entries, *more))


LIES: dict[str, tuple[Lie, str, tuple[str, ...]]] = {
    "no pack": (lambda repo, tree: _packs(tree), "as many files", ("unreadable",)),
    "a pack too many": (lambda repo, tree: _packs(tree, *tree.packs, *tree.packs), "as many files", ("unreadable",)),
    "a file too many": (lambda repo, tree: _pack(tree, files=2), "as many files", ("unreadable",)),
    "another size": (lambda repo, tree: _sized(tree, 6), "several sizes", ("unreadable",)),
    "other bytes": (lambda repo, tree: _pack(tree, object=repo.objects.put(b"x" * 7)), "digest", ("corrupt",)),
    "a pack that is not there": (lambda repo, tree: _pack(tree, object="2" * 64), "2" * 64, ("missing",)),
}


@pytest.mark.parametrize(("lie", "saying", "kinds"), LIES.values(), ids=LIES.keys())
def test_a_tree_with_false_packs_is_refused_and_named(
    tmp_path: Path, lie: Lie, saying: str, kinds: tuple[str, ...]
) -> None:
    repo = Repository.create(LocalStore(tmp_path / "store"))
    honest = repo.objects.get_record(planted.packed(repo, {b"a": b"content"}), Tree)
    tree = repo.objects.put_record(lie(repo, honest))
    snapshot = planted.publish(repo, planted.snapshot(tree))
    with pytest.raises((CorruptObject, NotFound), match=saying):
        _checkout(repo, snapshot, tmp_path / "target")
    damage = fsck.check(repo).damage
    assert tuple(sorted(one.kind for one in damage)) == kinds
    assert all(f"snapshot {snapshot}" in one.harms for one in damage)


def test_a_small_file_in_chunks_is_refused(tmp_path: Path) -> None:
    repo = Repository.create(LocalStore(tmp_path / "store"))
    digest = repo.objects.put_record(Tree(entries=(planted.file(repo.objects, b"a", b"content"),)))
    with pytest.raises(CorruptObject, match=f"{digest}.*chunks"):
        trees.load(repo.objects, digest)


def _checkout(repo: Repository, snapshot: Digest, target: Path) -> None:
    materialise(repo.objects, [trees.load(repo.objects, snapshots.load(repo, snapshot).code.tree)], target)
