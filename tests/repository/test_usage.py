"""Bytes of runs: unique to one, shared by several, and needed by none."""

import random
from pathlib import Path

import pytest

from m5ws.repository import usage
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.records import contents, planted


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository.create(LocalStore(tmp_path / "store", durable=False))


def _save(repo: Repository, run: str, step: int, data: bytes) -> None:
    planted.checkpoint(
        repo, run, step, contents.content(repo.objects, world=1, blobs={"w": planted.whole(repo.objects, data)})
    )


def test_bytes_are_unique_shared_or_needed_by_no_run(repo: Repository, tmp_path: Path) -> None:
    draw = random.Random(1)
    own, common, left = draw.randbytes(5000), draw.randbytes(3000), draw.randbytes(700)
    code = planted.tree(repo, tmp_path / "code", {"train.py": "x" * 2000})
    snapshot = planted.publish(repo, planted.snapshot(code))
    for run in ("a" * 12, "b" * 12):
        planted.run(repo, run, snapshot, name=run[:1])
        _save(repo, run, 1, common)
    _save(repo, "a" * 12, 2, own)
    repo.objects.put(left)
    found = usage.measure(repo)
    rows = {row.run: row for row in found.runs}
    a, b = rows["a" * 12], rows["b" * 12]
    assert [row.name for row in found.runs] == ["a", "b"]
    # Each checkpoint has a record and a content record of its own, of some hundred bytes.
    assert 5000 <= a.unique_bytes < 6500 and b.unique_bytes < 1000
    assert 5000 < b.shared_bytes < 7000 and a.shared_bytes == b.shared_bytes
    assert found.other_bytes == 700
    assert found.size_bytes == sum(stat.size_bytes for stat in repo.store.list("objects/"))
    assert found.size_bytes == a.unique_bytes + b.unique_bytes + a.shared_bytes + found.other_bytes


def test_a_run_is_counted_with_its_replays(repo: Repository) -> None:
    snapshot = planted.publish(repo, planted.snapshot(planted.packed(repo, {b"x": b"y"})))
    reproduces = {"a": None, "b": "a" * 12, "c": "b" * 12, "d": "e" * 12}
    for number, (letter, original) in enumerate(reproduces.items()):
        planted.run(repo, letter * 12, snapshot, reproduces=original, created_s=float(number))
        _save(repo, letter * 12, 1, b"d" * 4000 if letter == "d" else b"a" * 5000)
    alone, whole = usage.measure(repo).runs[1], usage.measure(repo).runs[0]
    assert (whole.run, whole.replays, alone.run, alone.replays) == ("a" * 12, 2, "d" * 12, 0)
    assert whole.unique_bytes > 5000 and alone.unique_bytes > 4000


def test_a_damaged_run_is_named_and_other_runs_are_measured(repo: Repository) -> None:
    for run in ("a" * 12, "b" * 12):
        planted.run(repo, run, planted.publish(repo, planted.snapshot(planted.packed(repo, {b"x": b"y"}))))
        _save(repo, run, 1, run.encode() * 100)
    key = f"runs/{'a' * 12}/checkpoints/0000000001-0001"
    digest = repo.store.get(key).decode().strip()
    repo.store.delete(f"objects/{digest[:2]}/{digest}")
    rows = {row.run: row for row in usage.measure(repo).runs}
    assert rows["a" * 12].problem and not rows["b" * 12].problem and rows["b" * 12].unique_bytes >= 1200
