"""`m5ws.Workspace` and `m5ws.Run`: the same facts as the commands print, and the same errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import m5ws
from m5ws.errors import AmbiguousId, CorruptObject, M5Error, NotFound, UsageError
from m5ws.repository.references import notes
from tests.library.conftest import BEGIN_S, Planted, loss
from tests.support.records import planted
from tests.support.workspace import command_line
from tests.support.workspace.checkouts import commit_all, write


@pytest.fixture
def workspace(planted_workspace: Planted) -> m5ws.Workspace:
    return m5ws.Workspace(planted_workspace.root)


@pytest.fixture
def run(workspace: m5ws.Workspace) -> m5ws.Run:
    return workspace.run("baseline")


# --- a workspace


def test_the_package_loads_nothing_of_the_interface() -> None:
    code = (
        "import sys, m5ws; print(*(name for name in sys.modules if name.split('.')[0] in ('m5ws', 'msgspec', 'torch')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["m5ws.version", "m5ws"]


def test_reading_runs_loads_neither_torch_nor_pandas(planted_workspace: Planted) -> None:
    code = f"""
import sys, m5ws
(run, replay) = m5ws.Workspace({str(planted_workspace.root)!r}).runs()
run.steps(), run.checkpoints(), run.verdicts(), run.notes(), run.parameters
print(*({{"torch", "pandas", "numpy", "click", "mlflow"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_runs_equal_the_rows_of_the_ls_command(planted_workspace: Planted, workspace: m5ws.Workspace) -> None:
    document = json.loads(command_line.call("-C", str(planted_workspace.root), "ls", "--runs", "--json").stdout)
    assert [run.id for run in workspace.runs()] == [row["id"] for row in document["runs"]]
    assert [run.id for run in workspace.runs("reproduces is null", limit=1)] == [planted_workspace.run]
    assert len(workspace.runs(limit=1)) == 1 and len(workspace.runs(limit=0)) == 2


@pytest.mark.parametrize("name", ["7c1d00000001", "7c1d00000001  ", "Baseline"])
def test_a_run_has_an_id_and_a_name(planted_workspace: Planted, workspace: m5ws.Workspace, name: str) -> None:
    assert workspace.run(name).id == planted_workspace.run


def test_a_store_is_enough_to_read_and_note_runs(planted_workspace: Planted, tmp_path: Path) -> None:
    url = f"file://{planted_workspace.root}/.m5ws/store"
    there = m5ws.Workspace(url)
    assert repr(there) == f"m5ws.Workspace({url!r})"
    found = there.run("baseline")
    found.note("read elsewhere")
    assert [note.text for note in found.notes()] == ["read elsewhere"]
    with pytest.raises(UsageError, match="store"):
        there.snapshot()
    with pytest.raises(NotFound):
        m5ws.Workspace(f"file://{tmp_path}/nowhere").runs()


def test_a_snapshot_has_the_id_that_the_command_prints(tmp_path: Path) -> None:
    write(tmp_path, {"m5ws.toml": "[mlflow]\nenabled = false\n", "train.py": "print(1)\n", "config.yaml": "lr: 1\n"})
    commit_all(tmp_path)
    here = m5ws.Workspace(tmp_path)
    with pytest.raises(NotFound):
        here.runs()
    taken = here.snapshot("from a notebook")
    assert command_line.call("-C", str(tmp_path), "snapshot", "--dry-run").stdout.strip() == taken
    shown = json.loads(command_line.call("-C", str(tmp_path), "show", taken, "--json").stdout)
    assert shown["annotations"][0]["message"] == "from a notebook"


def test_library_errors_have_the_types_of_command_errors(
    planted_workspace: Planted, workspace: m5ws.Workspace, tmp_path: Path
) -> None:
    cases: list[tuple[type[M5Error], object]] = [
        (NotFound, lambda: m5ws.Workspace(tmp_path)),
        (NotFound, lambda: workspace.run("nothing")),
        (NotFound, lambda: workspace.run("")),
        (AmbiguousId, lambda: workspace.run("7c1d")),
        (UsageError, lambda: workspace.runs(limit=-1)),
        (UsageError, lambda: workspace.runs("los < 3")),
        (NotFound, lambda: workspace.run("baseline").load(step=3)),
        (UsageError, lambda: workspace.run("baseline").load("generators")),
        (UsageError, lambda: workspace.run("baseline").outputs(planted_workspace.root)),
        (NotFound, lambda: workspace.run(planted_workspace.replay).outputs(tmp_path / "out")),
        (NotFound, lambda: workspace.run(planted_workspace.replay).load()),
        (UsageError, lambda: workspace.run("baseline").note("  ")),
        (UsageError, lambda: workspace.run("baseline").note("text", outcome="perhaps")),  # type: ignore[arg-type]
    ]
    for error, call in cases:
        with pytest.raises(error):
            call()  # type: ignore[operator]
    assert not (tmp_path / "out").exists()


# --- a run


def test_the_properties_of_a_run_match_its_records(planted_workspace: Planted, run: m5ws.Run) -> None:
    assert (run.id, run.name, run.state) == (planted_workspace.run, "baseline", "finished")
    assert (run.step, run.total_steps, run.loss, run.lowest_loss) == (4, 4, 0.5, 0.5)
    assert (run.snapshot, run.reproduces) == (planted_workspace.snapshot, None)
    assert run.created.timestamp() == BEGIN_S
    assert (run.user, run.host) == ("ana", "node-7")
    assert (run.parameters["optimizer.lr"], run.parameters["args.epochs"]) == ("0.1", "3")
    assert run.parameters["launch.seed"] == "7"


def test_the_repr_of_a_run_escapes_control_characters(
    planted_workspace: Planted, workspace: m5ws.Workspace, run: m5ws.Run
) -> None:
    assert repr(run) == "<m5ws.Run 7c1d00000001 'baseline': finished, step 4 of 4>"
    planted.run(planted_workspace.repo, "ba5e00000003", planted_workspace.snapshot, name="\x1b[2J<b>\u202e")
    hostile = workspace.run("ba5e00000003")
    assert "\x1b" not in repr(hostile) and "\u202e" not in repr(hostile)


def test_steps_come_from_the_last_attempt_and_are_exact(run: m5ws.Run) -> None:
    steps = run.steps()
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert [row["loss"] for row in steps[:2]] == [loss(1), loss(2)] and steps[2]["loss"] != steps[2]["loss"]
    assert steps[0] == {"step": 1, "seconds": 0.5, "tokens": 64, "time_s": BEGIN_S + 1, "loss": 2.0, "lr": 0.1}
    assert [row["step"] for row in run.steps(rank=1)] == [3, 4]
    assert run.steps(rank=5) == []


def test_metrics_are_a_data_frame_by_step(run: m5ws.Run) -> None:
    frame = run.metrics()
    assert list(frame.index) == [1, 2, 3, 4] and frame.index.name == "step"
    assert list(frame.columns) == ["seconds", "tokens", "time_s", "loss", "lr"]
    assert frame["loss"].isna().tolist() == [False, False, True, False]
    assert run.metrics(rank=5).empty and run.metrics(rank=5).index.name == "step"


def test_metrics_are_a_list_of_steps_without_pandas(run: m5ws.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert run.metrics(rank=1)[1] == run.steps(rank=1)[1]


def test_a_run_loads_its_newest_checkpoint_or_the_checkpoint_at_a_step(
    planted_workspace: Planted, run: m5ws.Run
) -> None:
    assert [(one.step, one.attempt, one.counts) for one in run.checkpoints()] == [(2, 1, True), (4, 2, True)]
    for step, tensors in ((2, run.load("model", step=2)), (4, run.load())):
        expected = planted_workspace.weights[step]
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name].view(torch.int32), expected[name].view(torch.int32)) for name in expected)
        torch.nn.Linear(3, 2).load_state_dict(tensors)
    assert list(run.load("optimizer")) == ["state.weight.exp_avg"]


def test_outputs_are_written_to_a_new_folder(run: m5ws.Run, tmp_path: Path) -> None:
    folder = run.outputs(tmp_path / "new")
    assert json.loads((folder / "results" / "scores.json").read_text()) == {"accuracy": 0.5}


def test_verdicts_name_the_run_and_its_replay(planted_workspace: Planted, workspace: m5ws.Workspace) -> None:
    for name in (planted_workspace.run, planted_workspace.replay):
        (verdict,) = workspace.run(name).verdicts()
        assert (verdict.outcome, verdict.run, verdict.replay) == (
            "diverged", planted_workspace.run, planted_workspace.replay,
        )  # fmt: skip
        assert verdict.first is not None and verdict.first.step == 4


def test_a_note_of_the_library_equals_a_note_of_the_command(planted_workspace: Planted, run: m5ws.Run) -> None:
    token = "ghp_" + "a1B2c3D4e5F6" * 3
    written = run.note(f"with {token}", outcome="refuted")
    assert written == notes.load(planted_workspace.repo, run.id)[0] == run.notes()[0]
    assert token not in written.text and written.outcome == "refuted"


def test_a_damaged_run_hides_no_other_run(planted_workspace: Planted, workspace: m5ws.Workspace) -> None:
    path = planted_workspace.root / ".m5ws" / "store" / "runs" / "ba5e00000003" / "run"
    path.parent.mkdir()
    path.write_bytes(b"no record")
    states = {run.id: run.state for run in workspace.runs()}
    assert states["ba5e00000003"] == "damaged" and states[planted_workspace.run] == "finished"
    with pytest.raises(CorruptObject):
        workspace.run("ba5e00000003")
