"""The table of `m5ws ls`: its runs, their differences, and the number of reads."""

import math
from pathlib import Path

import pytest

from m5ws.records.ledger import NODE, AttemptEnded, Step
from m5ws.records.note import Note
from m5ws.records.run import LaunchSpec
from m5ws.records.verdict import Verdict
from m5ws.repository import reindex
from m5ws.repository.references import notes, run_index, runs
from m5ws.repository.repository import Repository
from m5ws.runs import run_losses, run_table
from m5ws.store.local import LocalStore
from tests.support.records import planted
from tests.support.records.forged_index import forget
from tests.support.stores.counting_store import CountingStore


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository.create(LocalStore(tmp_path / "store", durable=False))


def _run(repo: Repository, folder: Path, number: int, lr: str = "0.1", steps: int = 3, **fields: object) -> str:
    """Publish a run of a snapshot with this learning rate, and its finished attempt; the loss of step s is number/s."""
    config = planted.tree(repo, folder / lr, {"config.yaml": f"optimizer:\n  lr: {lr}\nwidth: 64\n"})
    snapshot = planted.publish(repo, planted.snapshot(config))
    spec = LaunchSpec(command=("train.py",), seed=3)
    run = planted.run(repo, f"{number:012x}", snapshot, **{"spec": spec, "created_s": float(number), **fields}).id
    _attempt(repo, run, 1, [number / step for step in range(1, steps + 1)], "finished")
    return run


def _attempt(
    repo: Repository, run: str, attempt: int, losses: list[float], outcome: str | None, name: str = "loss"
) -> None:
    planted.begin(repo, run, attempt)
    steps = [
        Step(step=step, quantities={"lr": (0.5).hex(), name: loss.hex()}, total=90)
        for step, loss in enumerate(losses, 1)
    ]
    for step in steps:
        planted.append(repo, run, attempt, "0", step)
    if outcome is not None:
        ended = AttemptEnded(outcome=outcome, exit_code=0)  # type: ignore[arg-type]
        planted.append(repo, run, attempt, NODE, ended)


def test_a_row_lists_only_its_differences_from_other_rows(repo: Repository, tmp_path: Path) -> None:
    first = _run(repo, tmp_path, 1)
    second = _run(repo, tmp_path, 2, "0.2", spec=LaunchSpec(command=("train.py",), seed=4))
    rows = {row.id: row for row in run_table.newest(repo).rows}
    assert set(rows[first].changes) == {"optimizer.lr", "launch.seed", "code"}
    assert (rows[first].changes["optimizer.lr"], rows[second].changes["optimizer.lr"]) == ("0.1", "0.2")
    (alone,) = run_table.newest(repo, limit=1).rows
    assert (alone.id, alone.changes) == (second, {})


def test_arguments_of_the_script_are_parameters(repo: Repository, tmp_path: Path) -> None:
    specs = [LaunchSpec(command=("train.py", "--batch", str(size), "--fast"), seed=3) for size in (8, 16)]
    first, second = (_run(repo, tmp_path / str(place), place, spec=spec) for place, spec in enumerate(specs, 1))
    rows = {row.id: row.changes for row in run_table.newest(repo).rows}
    assert rows == {first: {"args.batch": "8"}, second: {"args.batch": "16"}}


def test_replays_follow_their_originals_and_a_circle_of_replays_hides_nothing(repo: Repository, tmp_path: Path) -> None:
    for number in range(1, 4):
        _run(repo, tmp_path, number)
    for number, other in ((4, 1), (5, 1), (6, 7), (7, 6)):
        _run(repo, tmp_path, number, purpose="reproduce", reproduces=f"{other:012x}")
    assert [int(row.id, 16) for row in run_table.newest(repo).rows] == [7, 6, 3, 2, 1, 5, 4]
    table = run_table.newest(repo, limit=4)
    assert [int(row.id, 16) for row in table.rows] == [7, 6, 5, 4] and table.more


def test_rows_have_the_user_and_the_host_of_a_run(repo: Repository, tmp_path: Path) -> None:
    _run(repo, tmp_path, 1, user="ana", host="node-7")
    (row,) = run_table.newest(repo, condition="user = 'ana' and host like 'node-%'").rows
    assert (row.user, row.host) == ("ana", "node-7")


def test_the_last_and_the_lowest_loss_cover_all_attempts(repo: Repository, tmp_path: Path) -> None:
    run = planted.run(repo, "a" * 12, created_s=1.0).id
    _attempt(repo, run, 1, [3.0, 0.5, math.nan], "failed")
    _attempt(repo, run, 2, [2.0, 1.0], None)
    for _ in range(2):
        (row,) = run_table.newest(repo).rows
        assert (row.loss, row.lowest_loss, row.lowest_step) == (1.0, 0.5, 2)
        reindex.fill(repo)
    assert run_index.load(repo)[run].losses.keys() == {1}
    other = planted.run(repo, "b" * 12, created_s=2.0).id
    _attempt(repo, other, 1, [4.0], "finished", name="train/loss")
    planted.run(repo, "c" * 12, created_s=3.0)
    rows = {row.id: row for row in run_table.newest(repo).rows}
    assert rows[other].loss == 4.0 and rows["c" * 12].loss is None


def test_a_long_attempt_without_an_end_has_only_its_last_loss(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = planted.run(repo, "a" * 12).id
    _attempt(repo, run, 1, [1.0, 2.0, 3.0, 4.0], None)
    assert run_losses.recorded_losses(repo, run, 1).lowest == 1.0
    monkeypatch.setattr(run_losses, "_MOST_BATCHES", 3)
    found = run_losses.recorded_losses(repo, run, 1)
    assert (found.last, found.lowest) == (4.0, None)


def test_a_list_reads_only_the_shown_runs(repo: Repository, tmp_path: Path) -> None:
    for number in range(1, 31):
        _run(repo, tmp_path, number, name=f"run {number}")
    replay = _run(repo, tmp_path, 31, purpose="reproduce", reproduces=f"{1:012x}")
    runs.publish_verdict(repo, Verdict(run=f"{1:012x}", replay=replay, outcome="diverged"))
    notes.publish(repo, Note(run=f"{3:012x}", text="longer warmup", kind="why", outcome="open", created_s=1.0))
    reindex.fill(repo)
    counting = CountingStore(repo.store)
    table = run_table.newest(Repository.open(counting), limit=2)
    assert (len(table.rows), table.more) == (2, True)
    assert not [key for key in counting.gets if key.startswith(("runs/", "notes/", "objects/"))]


def test_a_damaged_run_is_listed(repo: Repository, tmp_path: Path) -> None:
    good, bad, lost = (_run(repo, tmp_path, number) for number in (1, 2, 3))
    repo.store.delete(f"runs/{bad}/ledger/0001/0/00000001")
    forget(repo, lost, "created")
    repo.store.delete(f"runs/{lost}/run")
    rows = {row.id: row.problem for row in run_table.newest(repo, limit=3).rows}
    assert rows.keys() == {good, bad, lost} and rows[good] is None and rows[bad] and rows[lost]
