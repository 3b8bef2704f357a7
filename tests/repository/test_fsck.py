"""`fsck` reports every kind of damage with its effects, and nothing that is undamaged."""

from pathlib import Path

import pytest

from m5ws.records.snapshot import Annotation
from m5ws.repository import bindings
from m5ws.repository.files import trees
from m5ws.repository.fsck import fsck
from m5ws.repository.objects import key, write_parts
from m5ws.repository.references import checkpoints, snapshots
from m5ws.repository.repository import Repository
from tests.support.records import contents, planted


@pytest.fixture
def filled(repo: Repository, tmp_path: Path) -> tuple[Repository, str]:
    """A store with one snapshot and one run with one checkpoint. Returns the store and the snapshot's id."""
    tree = planted.tree(repo, tmp_path, {"a.py": "print(1)\n" * 50})
    config = trees.write_tree(repo.objects, []).digest
    snapshot_id = planted.publish(repo, planted.snapshot(tree, config=config))
    planted.run(repo, "a" * 12, snapshot_id)
    planted.begin(repo, "a" * 12)
    blob = write_parts(repo.objects, [("w", bytes(5000))])["w"][0]
    planted.checkpoint(repo, "a" * 12, 3, contents.content(repo.objects, world=1, blobs={"w": blob}))
    return repo, snapshot_id


def _path(repo: Repository, where: str) -> Path:
    path = Path(repo.store.url) / where
    path.chmod(0o644)
    return path


def test_an_undamaged_store_is_clean_and_unnamed_objects_are_not_damage(filled: tuple[Repository, str]) -> None:
    repo, _ = filled
    repo.objects.put(b"left by a killed writer")
    report = fsck.check(repo)
    assert report.clean and report.unreachable == 1 and report.snapshots == 1 and report.runs == 1


def test_every_single_flipped_bit_is_named(filled: tuple[Repository, str]) -> None:
    repo, _ = filled
    for found in list(repo.store.list("objects/")):
        path = _path(repo, found.key)
        data = path.read_bytes()
        for position in range(0, len(data), max(1, len(data) // 5)):
            path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
            damage = fsck.check(repo).damage
            assert [(one.kind, one.key) for one in damage] == [("corrupt", found.key)]
            assert damage[0].harms
        path.write_bytes(data)
    assert fsck.check(repo).clean


def test_fsck_distinguishes_truncated_from_missing_objects_and_names_the_harmed_run(
    filled: tuple[Repository, str],
) -> None:
    repo, snapshot_id = filled
    tree = trees.load(repo.objects, snapshots.load(repo, snapshot_id).code.tree)
    where = key(tree.entries[0].parts[0].object)
    path = _path(repo, where)
    data = path.read_bytes()
    path.write_bytes(data[:-10])
    (damage,) = fsck.check(repo).damage
    assert (damage.kind, damage.key) == ("truncated", where)
    assert damage.harms == (f"run {'a' * 12}", f"snapshot {snapshot_id}")
    path.unlink()
    (damage,) = fsck.check(repo).damage
    assert (damage.kind, damage.key) == ("missing", where)
    assert damage.harms == (f"run {'a' * 12}", f"snapshot {snapshot_id}")


def test_a_reference_to_a_missing_object_is_named(filled: tuple[Repository, str]) -> None:
    repo, _ = filled
    where = f"runs/{'a' * 12}/checkpoints/{checkpoints.name(9, 1)}"
    repo.store.create(where, b"0" * 64 + b"\n")
    planted.run(repo, "b" * 12, "1" * 64)
    bindings.create(repo.store, f"snapshots/{'2' * 64}/x", Annotation(created_s=1.0))
    found = {(one.kind, one.key) for one in fsck.check(repo).damage}
    assert found == {
        ("dangling", where),
        ("dangling", f"runs/{'b' * 12}/run"),
        ("missing", key("1" * 64)),
        ("missing", key("2" * 64)),
    }


def test_a_broken_ledger_and_an_unreadable_record_are_named(filled: tuple[Repository, str]) -> None:
    repo, _ = filled
    batch = f"runs/{'a' * 12}/ledger/0001/0/00000000"
    _path(repo, batch).write_bytes(b"not a batch")
    _path(repo, f"runs/{'a' * 12}/run").write_bytes(b"\x80")
    kinds = {one.kind for one in fsck.check(repo).damage}
    assert kinds == {"broken-chain", "unreadable"}
