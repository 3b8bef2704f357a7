"""`reproduce --explain` on planted faults in real runs: the first module that differs, and the cause, or `unknown`.

tests/reproduce/test_recorded_traces.py judges the recorded traces of these runs without running them.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.support.records.recorded_traces import EXPECTED, Recorder
from tests.support.workspace.checkouts import commit_all
from tests.support.workspace.workspaces import Workspace, make_workspace

_FAULTS = """\
dropout_1: 0.1
scale: 1.0
gradient: 1.0
order: plain
flip_step: 0
draw_step: 0
noise: 0
hidden: ''
"""


def _workspace(folder: Path, nproc: int, faults: str = _FAULTS) -> tuple[Workspace, str]:
    workspace = make_workspace(folder / "w", "faulty.py", nproc=nproc)
    (workspace.root / "config.yaml").write_text(faults)
    commit_all(workspace.root)
    return workspace, workspace.train()


_MARKS: dict[str, tuple[pytest.MarkDecorator, ...]] = {
    "flip_step": (),
    "dropout": (pytest.mark.long,),
    "draw_step": (pytest.mark.long,),
}
"""The marks of planted differences. The campaigns try all differences."""


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    """A run on one process, with checkpoints after steps 4 and 6."""
    return _workspace(tmp_path_factory.mktemp("one"), 1)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    """A run on two processes, by FSDP2."""
    return _workspace(tmp_path_factory.mktemp("two"), 2)


def _explained(trained: tuple[Workspace, str], *options: str) -> Any:
    workspace, run = trained
    verdict = workspace.json("reproduce", run, *options, "--explain", expect=1)
    assert verdict["outcome"] == "diverged"
    return verdict["explanation"]


def _causes(explanation: Any) -> list[tuple[str, bool]]:
    return [(cause["kind"], cause["certain"]) for cause in explanation["causes"]]


@pytest.mark.parametrize("name", [pytest.param(name, marks=_MARKS.get(name, pytest.mark.soak)) for name in EXPECTED])
def test_an_explanation_names_the_first_difference_and_its_causes(
    one: tuple[Workspace, str], name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    recorder, expected = Recorder(monkeypatch), EXPECTED[name]
    explanation = _explained(one, "--set", expected.change)
    place = explanation["place"]
    assert explanation["between"] == "original and replay" and explanation["repeats"] is True
    assert (place["phase"], place["module"], place["quantity"], place["step"]) == expected.place
    assert _causes(explanation) == [(cause, True) for cause in expected.causes]
    if request.config.getoption("--update-golden"):
        recorder.write(name, explanation["first"], explanation["last"])
    assert all(side["agrees"] for side in explanation["sides"])
    if name == "gradient":
        assert place["op"] == "ScaledBackward" and place["alone"]
    if name == "flip_step":
        # From the checkpoint before the divergence, not from the start.
        workspace, _ = one
        assert workspace.json("show", explanation["sides"][0]["replay"])["run"]["segment"]["first"] == 4


def test_two_ranks_name_the_same_module(two: tuple[Workspace, str]) -> None:
    explanation = _explained(two, "--set", "dropout_1=0.3")
    place = explanation["place"]
    assert (place["module"], place["ranks"], place["phase"]) == ("blocks.1.drop", [0, 1], "forward")
    assert _causes(explanation) == [("module setting", True), ("recorded change", True)]


@pytest.mark.long
def test_the_original_is_replayed_with_its_own_environment(one: tuple[Workspace, str]) -> None:
    """A variable that the original did not have is unset for its side, so its replay equals it."""
    workspace, run = one
    given = ("reproduce", run, "--env", "warn", "--explain")
    done = workspace.m5ws(*given, expect=1, environment={"ATEN_CPU_CAPABILITY": "default"})
    assert "cause     recorded change (certain)" in done.stdout, done.stdout
    assert "under the original's conditions" in done.stderr
    assert "module    " in done.stdout


def test_an_explanation_of_different_replays_names_the_module_and_operations(tmp_path: Path) -> None:
    workspace, run = _workspace(tmp_path, 1, _FAULTS.replace("noise: 0", "noise: 1"))
    verdict = workspace.json("reproduce", run, "--explain", expect=1)
    assert verdict["outcome"] == "nondeterministic"
    explanation = verdict["explanation"]
    place = explanation["place"]
    assert (explanation["between"], explanation["repeats"]) == ("two replays", False)
    assert (place["module"], place["phase"], place["alone"]) == ("blocks.1.act", "forward", True)
    # The cause is possible, not certain: torch does not list the operation.
    assert _causes(explanation) == [("nondeterministic kernel", False)]
    assert "NoisyBackward" in explanation["causes"][0]["evidence"][0]
    shown = workspace.m5ws("show", verdict["replay"]).stdout
    assert "module    blocks.1.act" in shown and "nondeterministic kernel (possible)" in shown


def test_an_original_that_cannot_be_replayed_has_no_cause(tmp_path: Path) -> None:
    """It read a file that no longer exists. Its records show the place of the difference, but no cause."""
    hidden = tmp_path / "hidden"
    hidden.touch()
    faults = _FAULTS.replace("hidden: ''", f"hidden: {hidden}").replace("flip_step: 0", "flip_step: 5")
    workspace, run = _workspace(tmp_path, 1, faults)
    hidden.unlink()
    explanation = _explained((workspace, run), "--segment", "2")
    place = explanation["place"]
    assert (explanation["between"], explanation["repeats"]) == ("record and replay", True)
    assert (place["step"], place["phase"], place["quantity"], place["module"]) == (5, "loss", "loss", None)
    assert _causes(explanation) == [("unknown", False)]
    original = explanation["sides"][0]
    assert original["replay"] is None and "cannot be replayed" in original["problem"]
