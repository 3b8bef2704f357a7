"""Trees with several packings: complete packings are used and kept, and incomplete ones ignored."""

import errno
import logging
import random
from pathlib import Path

import msgspec
import pytest

from m5ws.errors import CorruptObject
from m5ws.records.base import Digest
from m5ws.records.gc import RetentionRules
from m5ws.records.run import LaunchSpec
from m5ws.records.tree import Entry, Pack, Packing, Tree
from m5ws.repository.files import trees
from m5ws.repository.files.materialise import materialise
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import roots
from m5ws.repository.objects import key
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import transfer
from m5ws.snapshot.config import overrides
from tests.support.files.small_files import FORM, Workspace, annotate
from tests.support.records import planted
from tests.support.stores.passing_store import PassingStore


class Two(Workspace):
    """A snapshot of a tree with two packings: `kept` uses an old pack, `repacked` has its own packs."""

    def __init__(self, root: Path, size: int = 300, pack_bytes: int = FORM.pack_bytes) -> None:
        super().__init__(root, msgspec.structs.replace(FORM, pack_bytes=pack_bytes))
        self.fill(random.Random(1), range(200), size)
        self.write()
        self.fill(random.Random(2), [7, 70], size)
        self.kept, self.repacked = self.write(), self.write(known=False)
        assert self.kept.digest == self.repacked.digest and self.kept.packing != self.repacked.packing
        config = planted.packed(self.repo, {b"config.yaml": b"lr: 1"})
        self._others = {config: trees.packing_of(self.repo.objects, self.repo.locations, config)}
        self.snapshot = self.repo.objects.put_record(planted.snapshot(self.repacked.digest, config=config))

    def say(self, packing: Digest | None, when: int) -> None:
        assert packing is not None
        others = {tree: digest for tree, digest in self._others.items() if digest is not None}
        annotate(self.repo, self.snapshot, {self.repacked.digest: packing, **others}, when)

    def names_nothing(self) -> Digest:
        return self.repo.objects.put_record(Packing(packs=()))

    def lose(self, digest: Digest | None) -> None:
        assert digest is not None
        self.repo.store.delete(key(digest))

    def readable(self, snapshot: Digest, target: Path) -> bool:
        fresh = Repository.open(self.repo.store)
        parts = [
            trees.located(fresh.objects, fresh.locations, tree)
            for tree in snapshots.load(fresh, snapshot).trees.values()
        ]
        materialise(fresh.objects, fresh.locations, parts, target)
        return True


def _reached(repo: Repository) -> set[bytes]:
    return roots.read(Repository.open(repo.store), RetentionRules(), lambda *_: False).reach.digests


@pytest.mark.parametrize("lost", ["a pack", "the packing"])
def test_a_packing_that_names_nothing_stands_for_no_other(tmp_path: Path, lost: str) -> None:
    here = Two(tmp_path)
    here.say(here.repacked.packing, 1)
    here.say(here.names_nothing(), 2)
    packs = here.packing(here.repacked).packs
    here.lose(packs[0].object if lost == "a pack" else here.repacked.packing)
    damage = fsck.check(Repository.open(here.repo.store)).damage
    assert [(one.kind, one.harms) for one in damage] == [("missing", (f"snapshot {here.snapshot}",))]
    if lost == "a pack":
        assert {bytes.fromhex(pack.object) for pack in packs} <= _reached(here.repo)


@pytest.mark.parametrize("newest", ["a broken one", "one that names nothing"])
def test_what_is_derived_from_a_snapshot_names_what_is_whole(tmp_path: Path, newest: str) -> None:
    here = Two(tmp_path)
    here.say(here.repacked.packing, 1)
    here.say(here.kept.packing if newest == "a broken one" else here.names_nothing(), 2)
    if newest == "a broken one":
        here.lose(here.irreplaceable(here.kept).object)
    derived = overrides.change(Repository.open(here.repo.store), here.snapshot, LaunchSpec(command=()), ["lr=2"])[0]
    assert here.readable(derived, tmp_path / "derived")
    assert fsck.check(Repository.open(here.repo.store)).clean


def test_what_cannot_be_read_now_is_needed_for_all_that_gc_knows(tmp_path: Path) -> None:
    here = Two(tmp_path)
    here.say(here.kept.packing, 1)
    here.say(here.repacked.packing, 2)

    def before(operation: str, where: str) -> None:
        if operation == "get" and where == key(str(here.repacked.packing)):
            raise OSError(errno.ESTALE, "Stale file handle", where)

    with pytest.raises(OSError, match="Stale"):
        _reached(Repository.open(PassingStore(here.repo.store, before)))
    # A reader uses the other packing.
    far = Repository.open(PassingStore(here.repo.store, before))
    snapshots.load(far, here.snapshot)
    assert trees.located(far.objects, far.locations, here.repacked.digest).entries


def test_who_cannot_read_what_says_where_files_lie_is_told_that_and_no_other_thing(tmp_path: Path) -> None:
    here = Two(tmp_path)
    here.say(here.repacked.packing, 1)

    def before(operation: str, where: str) -> None:
        if operation == "get" and where.startswith("snapshots/"):
            raise PermissionError(errno.EACCES, "no", where)

    broken = [True]
    far = Repository.open(PassingStore(here.repo.store, lambda *asked: before(*asked) if broken[0] else None))
    snapshots.load(far, here.snapshot)
    for look in (trees.located, trees.packing_of):
        with pytest.raises(PermissionError):
            look(far.objects, far.locations, here.repacked.digest)
    # A store that is readable again is used again.
    broken[0] = False
    assert trees.located(far.objects, far.locations, here.repacked.digest).entries


def _lie(here: Two, *, same_packs: bool) -> Digest:
    """Claim that other packs have the content of the true ones, or that the files are elsewhere in the true ones."""
    draw = random.Random(5)
    packs = here.packing(here.repacked).packs
    if same_packs:
        turned = (
            msgspec.structs.replace(
                pack, files=b"".join(reversed(list(pack.names))), sizes_bytes=tuple(reversed(pack.sizes_bytes))
            )
            for pack in packs
        )
        return here.repo.objects.put_record(Packing(packs=tuple(turned)))
    lies = [
        Pack(
            object=here.repo.objects.put(draw.randbytes(pack.size_bytes)),
            files=pack.files,
            sizes_bytes=pack.sizes_bytes,
        )
        for pack in packs
    ]
    return here.repo.objects.put_record(Packing(packs=tuple(lies)))


@pytest.mark.parametrize(("alone", "same_packs"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("way", ["materialised", "read one by one"])
def test_a_lie_costs_a_reader_a_reading_and_no_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str, alone: bool, same_packs: bool
) -> None:
    here = Two(tmp_path, size=1024, pack_bytes=1024) if alone else Two(tmp_path)
    here.say(here.repacked.packing, 1)
    lie = _lie(here, same_packs=same_packs)
    here.say(lie, 2)
    assert alone == any(len(pack.sizes_bytes) == 1 for pack in here.packing(here.repacked).packs)
    if way == "materialised":
        assert here.readable(here.snapshot, tmp_path / "read")
        found = {path.name: path.read_bytes() for path in (tmp_path / "read").iterdir() if path.name != "config.yaml"}
    else:
        fresh = Repository.open(here.repo.store)
        snapshots.load(fresh, here.snapshot)
        tree = trees.located(fresh.objects, fresh.locations, here.repacked.digest)
        found = {entry.name: trees.read_file(fresh.objects, fresh.locations, entry) for entry in tree.entries}
    assert found == here.content()
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 1
    assert "other packs" in caplog.text
    # The damage is reported anyway.
    named = {one.key for one in fsck.check(Repository.open(here.repo.store), read_data=True).damage}
    assert named == {key(pack.object) for pack in here.repo.objects.get_record(lie, Packing).packs}


def test_what_has_rotted_in_one_pack_is_read_from_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    here = Two(tmp_path)
    caplog.set_level(logging.DEBUG)
    here.say(here.kept.packing, 1)
    here.say(here.repacked.packing, 2)
    one, other = (here.packing(written).packs for written in (here.repacked, here.kept))
    rotten = {pack.object for pack in one} - {pack.object for pack in other}
    assert rotten
    for name in rotten:
        _rot(tmp_path / "store" / key(name))
    assert here.readable(here.snapshot, tmp_path / "read")
    assert any(name in caplog.text for name in rotten)
    # With both packings gone, reading is an error, and no content is invented.
    for name in {pack.object for pack in other}:
        _rot(tmp_path / "store" / key(name))
    with pytest.raises(CorruptObject, match="|".join(rotten | {pack.object for pack in other})):
        here.readable(here.snapshot, tmp_path / "lost")


def test_a_pack_that_the_disk_cannot_read_is_replaced_by_another(tmp_path: Path) -> None:
    here = Two(tmp_path)
    here.say(here.kept.packing, 1)
    here.say(here.repacked.packing, 2)
    shared = {pack.object for pack in here.packing(here.kept).packs}
    broken = {key(pack.object) for pack in here.packing(here.repacked).packs if pack.object not in shared}

    def before(operation: str, where: str) -> None:
        if operation == "get" and where in broken:
            raise OSError(errno.EIO, "Input/output error", where)

    assert broken
    here.repo = Repository.open(PassingStore(here.repo.store, before))
    assert here.readable(here.snapshot, tmp_path / "read")


def test_a_file_is_of_the_length_that_its_tree_says_wherever_it_is_read(tmp_path: Path) -> None:
    here = Two(tmp_path)
    data = random.Random(6).randbytes(300)
    digest = here.repo.objects.digest(data)
    entry = Entry(path=b"f", mode="file", size_bytes=100, digest=digest)
    tree = here.repo.objects.put_record(Tree(entries=(entry,)))
    packings = [
        Packing(packs=(Pack(object=here.repo.objects.put(held), files=bytes.fromhex(digest), sizes_bytes=(size,)),))
        for held, size in ((data, 300), (b"x" * 100, 100))
    ]
    config = planted.packed(here.repo, {b"config.yaml": b"lr: 1"})
    snapshot = here.repo.objects.put_record(planted.snapshot(tree, config=config))
    for when, packing in enumerate(packings, 1):
        annotate(here.repo, snapshot, {tree: here.repo.objects.put_record(packing)}, when)
    fresh = Repository.open(here.repo.store)
    snapshots.load(fresh, snapshot)
    with pytest.raises(CorruptObject):
        trees.read_file(fresh.objects, fresh.locations, trees.located(fresh.objects, fresh.locations, tree).entries[0])


def _rot(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[::50] = (byte ^ 1 for byte in data[::50])
    path.chmod(0o644)
    path.write_bytes(data)


class Killed(BaseException):
    pass


def test_a_push_that_is_killed_has_published_what_can_be_read(tmp_path: Path) -> None:
    here = Two(tmp_path)
    here.say(here.kept.packing, 1)
    here.say(here.repacked.packing, 2)
    here.lose(here.irreplaceable(here.kept).object)
    target = Workspace(tmp_path / "target").repo

    def created(where: str) -> None:
        if where.startswith("snapshots/"):
            raise Killed

    to = Repository.open(PassingStore(target.store, None, created))
    with pytest.raises(Killed):
        transfer.copy(Repository.open(here.repo.store), to, [("snapshot", here.snapshot)])
    here.repo = target
    assert here.readable(here.snapshot, tmp_path / "read")
    assert fsck.check(Repository.open(target.store)).clean


def test_a_foreign_file_among_annotations_hides_no_snapshot(tmp_path: Path) -> None:
    here = Two(tmp_path)
    here.say(here.repacked.packing, 1)
    store = tmp_path / "store" / "snapshots"
    (one,) = (store / here.snapshot).iterdir()
    (store / here.snapshot / f"{one.name} (conflicted copy)").write_bytes(one.read_bytes())
    (store / "~notes.txt").write_text("x")
    assert here.readable(here.snapshot, tmp_path / "read")
