"""Two runs that differ in several inputs: the bisection finds the causes, with runs as short as possible."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.workspace.checkouts import git
from tests.support.workspace.workspaces import SCRIPTS, Workspace

_SETTINGS = """\
name = "mixed"

[config]
files = ["config.json"]

[data]
paths = ["data"]

[environment]
variables = ["TILT"]

[run]
command = ["train.py"]
checkpoint_every = 4
fingerprint_every = 1

[mlflow]
enabled = false
"""
_POINTS = [f"{number / 7:.3f}" for number in range(16)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    """A workspace with one finished run of 6 steps."""
    root = tmp_path_factory.mktemp("bisect") / "w"
    (root / "data").mkdir(parents=True)
    (root / "train.py").write_text((SCRIPTS / "mixed.py").read_text())
    (root / "m5ws.toml").write_text(_SETTINGS)
    (root / ".gitignore").write_text(".m5ws/\n")
    _write(root)
    git(root, "init", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-m", "first")
    workspace = Workspace(root)
    return workspace, workspace.train()


def _write(
    root: Path, *, rate: float = 0.01, note: str = "first", unused: str = "first", points: str = " ".join(_POINTS)
) -> None:
    (root / "notes.py").write_text(f"NOTE = {unused!r}\n")
    (root / "config.json").write_text(json.dumps({"learning_rate": rate, "note": note}, indent=2) + "\n")
    (root / "data" / "points.txt").write_text(points + "\n")


def _told(report: Any) -> dict[str, str]:
    """Return the tested sets, with their answers."""
    return {" + ".join(trial["taken"]): trial["answer"] for trial in report["trials"]}


def test_bisect_names_the_only_effective_change_of_four_and_repeats_no_run(trained: tuple[Workspace, str]) -> None:
    workspace, good = trained
    _write(workspace.root, rate=0.02, note="second", unused="second", points=" ".join(_POINTS) + " ")
    bad = workspace.train()
    planned = workspace.json("bisect", good, bad, "--dry-run")
    assert planned["first"]["step"] == 1 and planned["first"]["quantity"] == "lr"
    assert set(planned["alone"]) == {"config learning_rate", "config note", "code notes.py", "data data"}
    assert planned["alone"][0] == "config learning_rate" and planned["most_runs"] == 16
    before = len(workspace.json("ls", "--runs")["runs"])

    report = workspace.json("bisect", good, bad)
    assert (report["outcome"], report["causes"], report["enough"]) == ("explained", [["config learning_rate"]], True)
    assert list(_told(report).values()) == ["same", "differs", "same"] and report["runs"] == 3
    assert len(workspace.json("ls", "--runs")["runs"]) == before + 3
    # No further than to the step where the runs diverge.
    control = workspace.history(report["trials"][0]["run"])
    assert sorted(control.steps[0]) == [1]

    output = workspace.m5ws("bisect", good, bad).stdout
    assert f"EXPLAINED: run {bad} against run {good}\n  config learning_rate makes the runs differ" in output
    assert "3" in output and "all but config learning_rate" in output
    assert len(workspace.json("ls", "--runs")["runs"]) == before + 3


@pytest.mark.long
def test_an_unpinned_cause_is_not_attributed_to_pinned_changes(trained: tuple[Workspace, str]) -> None:
    workspace, good = trained
    _write(workspace.root, note="fourth")
    tilted = json.loads(workspace.m5ws("run", "--json", environment={"TILT": "0.5"}).stdout)["run"]["id"]
    report = workspace.json("bisect", good, tilted, expect=1)
    assert (report["outcome"], report["causes"]) == ("not explained", [])
    assert set(_told(report).values()) == {"same"} and report["plan"]["first"]["step"] == 4
    assert [change["name"] for change in report["plan"]["environment"]] == ["variable.TILT"]
    # If GOOD itself cannot be replayed here, the report is about that, and nothing else runs.
    report = workspace.json("bisect", tilted, good, expect=2)
    assert (report["outcome"], report["runs"]) == ("not comparable", 1)
    assert [change["name"] for change in report["here"]] == ["variable.TILT"]
