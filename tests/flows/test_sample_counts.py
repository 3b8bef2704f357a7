"""Counts of samples of a dataset that stays in its remote: real runs on two nodes, each with a cache of its own."""

import json
import shutil
from pathlib import Path

import pytest

from tests.snapshot.test_snapshot_dvc import dvc
from tests.support.workspace.checkouts import commit_all
from tests.support.workspace.workspaces import Workspace, make_workspace

pytest.importorskip("dvc")
_FILES, _ROWS = 40, 4


def _train(workspace: Workspace, cache: Path) -> tuple[str, int]:
    """Train with an empty cache; return the run, and the number of files of the dataset that the node fetched."""
    text = (workspace.root / "m5ws.toml").read_text().partition("\n[store]")[0]
    (workspace.root / "m5ws.toml").write_text(f'{text}\n[store]\ncache = "{cache}"\n')
    run = workspace.train("--seed", "5")
    return run, sum(path.is_file() for path in (cache / "objects" / "files").rglob("*"))


def test_the_run_of_a_new_node_fetches_the_files_of_its_steps_alone(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "reading.py", trainer="python", nproc=1)
    workspace.edit("train.py", 'dataset="data/docs"', 'dataset="docs"')
    workspace.edit("m5ws.toml", 'paths = ["data"]', 'paths = ["data"]\nstay = ["docs"]')
    (workspace.root / "docs").mkdir()
    for file in range(_FILES):
        lines = [json.dumps({"value": file * _ROWS + row}) for row in range(_ROWS)]
        (workspace.root / "docs" / f"part-{file:02}.jsonl").write_text("\n".join(lines))
    (workspace.root / "docs" / "README").write_text("documents\n")
    shutil.copytree(workspace.root / "docs", workspace.root / "data" / "again")
    for command in (("init",), ("remote", "add", "-d", "near", "../remote"), ("add", "docs"), ("push",)):
        dvc(workspace.root, *command)
    commit_all(workspace.root)

    first, fetched = _train(workspace, tmp_path / "one")
    assert fetched == _FILES and len([*workspace.repo.store.list("samples/")]) == 1
    second, fetched = _train(workspace, tmp_path / "two")
    assert 0 < fetched < _FILES // 2, "eight steps of four samples need a part of the files"
    orders = [next(iter(workspace.history(run).orders.values())) for run in (first, second)]
    assert orders[0].description == orders[1].description
    assert workspace.json("fsck")["clean"]
    workspace.m5ws("gc", "--dry-run")
    assert workspace.json("consumed", second, "--file", "docs")["steps"]

    # A copy in the store has a digest of BLAKE3, and a file in DVC's remote one of MD5.
    reads = [workspace.json("consumed", second, "--file", f"docs/part-{file:02}.jsonl", expect=None) for file in (3, 9)]
    copies = [
        workspace.json("consumed", second, "--file", f"data/again/part-{file:02}.jsonl", expect=None) for file in (3, 9)
    ]
    assert [read["steps"] for read in reads] == [copy["steps"] for copy in copies]
    whole = [workspace.json("consumed", second, "--file", path)["steps"] for path in ("docs", "data/again")]
    assert whole[0] == whole[1]
    workspace.m5ws("fork", f"{second}@4", "--without", "data/again/part-03.jsonl", "--name", "without")
    without = ["data/again/part-03.jsonl", "docs/part-03.jsonl"]
    assert workspace.json("show", "without")["run"]["spec"]["without"] == without
    (line,) = workspace.json("consumed", second, "--file", "docs/README", expect=1)["unknown"]
    assert "has no samples, but may belong to a file of docs" in line
