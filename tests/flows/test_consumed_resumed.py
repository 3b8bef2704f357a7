"""Consumed samples of a run that is killed, resumed and forked onto another number of ranks, against its batches."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.workspace.workspaces import Workspace, make_workspace

_FILES, _ROWS, _STEPS, _SAVED = 4, 7, 12, 4
_DATASETS = {"docs": 0, "books": 1000, "tests": 2000}
"""The first id of each dataset."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a folder with a workspace, and the run in it that was killed in step 7 after the checkpoint of step 4."""
    root = tmp_path_factory.mktemp("resumed") / "all"
    (root / "ids").mkdir(parents=True)
    workspace = make_workspace(root / "workspace", "mixing.py", nproc=2)
    for name, first in _DATASETS.items():
        (workspace.root / "data" / name).mkdir()
        for file in range(_FILES):
            lines = [json.dumps({"id": _id(first, file, row)}) for row in range(_ROWS)]
            (workspace.root / "data" / name / f"part-{file}.jsonl").write_text("\n".join(lines))
    workspace.m5ws("run", "--name", "killed", "train.py", str(root / "ids"), expect=None)
    (run,) = workspace.repo.store.names("runs/")
    assert max(workspace.history(run).contents) == _SAVED and workspace.history(run).last_step >= _SAVED
    return root, run


def _id(first: int, file: int, row: int) -> int:
    return first + _ROWS * file + row


def _resume(killed: tuple[Path, str], moved: int) -> Workspace:
    """Resume the run. Later resumes have the run as it was killed."""
    root, run = killed
    workspace = Workspace(root / "workspace")
    (root / "ids" / "moved").write_text(f"{moved}\n")
    shutil.copytree(root / "workspace", root / "before")
    workspace.m5ws("resume", run, expect=None)
    shutil.move(root / "workspace", root / f"after {moved}")
    shutil.move(root / "before", root / "workspace")
    return Workspace(root / f"after {moved}")


def _read(root: Path, world: int) -> dict[int, set[int]]:
    """Return the ids in the batches of all ranks by step: of each step the batches that were read last."""
    steps: dict[int, set[int]] = {}
    for rank in range(world):
        lines = map(json.loads, (root / "ids" / f"{world}-{rank}.jsonl").read_text().splitlines())
        last = {number: {each for row in rows for each in row} for number, rows in lines}
        for number, ids in last.items():
            steps[number] = steps.get(number, set()) | ids
    return steps


def _steps(found: Any) -> set[int]:
    return {step for each in found["steps"] for step in range(each["first"], each["last"] + 1)}


def _assert_known(workspace: Workspace, run: str, read: dict[int, set[int]]) -> None:
    assert sorted(read) == [*range(1, _STEPS + 1)]
    for name in ("docs", "books"):
        first = _DATASETS[name]
        for file in range(_FILES):
            path, ids = f"data/{name}/part-{file}.jsonl", {_id(first, file, row) for row in range(_ROWS)}
            found = workspace.json("consumed", run, "--file", path, expect=None)
            assert _steps(found) == {step for step, seen in read.items() if seen & ids} and not found["unknown"], path
        row = _ROWS - 1 - len(name) % 3
        found = workspace.json("consumed", run, "--sample", f"data/{name}/part-1.jsonl#{row}", expect=None)
        assert _steps(found) == {step for step, seen in read.items() if _id(first, 1, row) in seen}


def test_samples_of_a_resumed_run_and_of_its_fork_on_one_rank_are_the_samples_in_the_batches(
    killed: tuple[Path, str],
) -> None:
    root, run = killed
    workspace = _resume(killed, 0)
    assert not [notice for notice in workspace.history(run).notices if notice.kind == "data-position"]
    read = _read(root, 2)
    _assert_known(workspace, run, read)
    workspace.m5ws("fork", f"{run}@8", "--nproc", "1", "--name", "one-rank")
    forked = _read(root, 1)
    assert sorted(forked) == [9, 10, 11, 12] and forked == {step: read[step] for step in forked}
    _assert_known(workspace, "one-rank", {**read, **forked})


def test_a_file_that_a_rank_reads_by_another_loader_is_not_known_as_unread(killed: tuple[Path, str]) -> None:
    root, run = killed
    workspace = Workspace(root / "workspace")
    for query in (
        "--file=data/tests/part-2.jsonl",
        "--file=data/tests",
        "--sample=data/tests/part-0.jsonl#1",
        f"--match={'0' * 64}",
    ):
        found = workspace.json("consumed", run, query, expect=1)
        assert found["unknown"] == [f"run {run} reads data/tests by another loader, which records no samples"]
        assert not found["steps"] and found["before"] is None
    everywhere = workspace.json("consumed", "--everywhere", "data/tests/part-2.jsonl", expect=1)
    assert [each["run"] for each in everywhere["unknown"]] == [run] and not everywhere["not_consumed"]
    found = workspace.json("consumed", run, "--file", "data")
    assert found["steps"] and found["unknown"], "a folder of both has known and unknown samples"


@pytest.mark.parametrize("moved", [6, -3])
def test_a_resume_that_moves_the_loader_has_a_notice_with_the_number_of_samples(
    moved: int, killed: tuple[Path, str]
) -> None:
    run, workspace = killed[1], _resume(killed, moved)
    (notice,) = [each for each in workspace.history(run).notices if each.kind == "data-position"]
    done = "skipped" if moved > 0 else "repeated"
    # Two of three samples are of `docs`, so its next position after four batches of six samples is 16.
    start, batch = 16 + moved, 4
    expected = f"the resume {done} {abs(moved)} samples of docs: step 5 consumed 0:{start}-{start + batch}, and 0:16 is"
    assert notice.step == 5 and notice.message.startswith(expected), notice
    assert notice.message in workspace.m5ws("show", run).stdout
