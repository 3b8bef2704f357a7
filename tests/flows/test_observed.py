"""Scripts that know nothing of m5ws: their steps are observed, compared, and checked in a resume."""

from pathlib import Path

import pytest

from tests.support import paths
from tests.support.workspace.workspaces import Workspace, make_workspace

_SCRIPT = paths.ROOT / "tests" / "training" / "scripts" / "observed.py"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = make_workspace(tmp_path / "w", "plain.py", nproc=1, run='outputs = ["out"]')
    (workspace.root / "train.py").write_bytes(_SCRIPT.read_bytes())
    return workspace


def test_equal_steps_and_files_are_reproduced_as_observed(workspace: Workspace) -> None:
    run = workspace.train("--", "train.py", "resuming", "4")
    verdict = workspace.json("reproduce", run)
    assert verdict["outcome"] == "reproduced" and verdict["observed"]
    assert verdict["compared"]["steps"] == 4 and verdict["compared"]["files"] == 1
    assert verdict["compared"]["tensors"] > 20 and verdict["compared"]["digests"] == 8
    assert "no weights alive" in [gap["kind"] for gap in verdict["not_compared"]]
    assert "(observed)" in workspace.m5ws("show", verdict["replay"]).stdout


def test_a_run_without_a_record_of_its_final_weights_is_at_most_sampled(workspace: Workspace) -> None:
    workspace.edit("m5ws.toml", 'outputs = ["out"]', "")
    run = workspace.train("--", "train.py", "resuming", "4")
    verdict = workspace.json("reproduce", run)
    assert (verdict["outcome"], verdict["reasons"][0]["doubt"]["kind"]) == ("sampled", "no weights alive")


def test_a_run_that_is_not_observed_is_compared_by_its_files(workspace: Workspace) -> None:
    run = workspace.train("--no-observe", "--", "train.py", "resuming", "4")
    verdict = workspace.json("reproduce", run)
    assert verdict["outcome"] == "reproduced" and not verdict["observed"]
    assert set(verdict["compared"]) == {"files", "tensor files"}


def test_the_files_of_a_run_that_did_not_finish_are_not_judged(workspace: Workspace, tmp_path: Path) -> None:
    """Its replay does not end after the last step of the original, and writes a newer file."""
    run = workspace.m5ws(
        "run", "--no-progress", "--", "train.py", "resuming", "8", str(tmp_path / "died"), expect=1
    ).stdout.strip()
    verdict = workspace.json("reproduce", run)
    assert verdict["outcome"] == "reproduced" and verdict["compared"]["steps"] == 5
    assert {item["reason"] for item in verdict["items"]} == {"the original did not end by itself"}
    shown = workspace.m5ws("show", verdict["replay"]).stdout
    assert "REPRODUCED up to step 5 (the end of the original: failed) (observed): run" in shown


@pytest.mark.parametrize("observe", [[], ["--no-observe"]])
def test_a_replay_that_fails_by_itself_is_no_divergence(
    workspace: Workspace, tmp_path: Path, observe: list[str]
) -> None:
    """The file of a later step is missing, because the replay did not get there."""
    died = tmp_path / "died"
    died.touch()
    run = workspace.train(*observe, "--", "train.py", "resuming", "8", str(died))
    died.unlink()
    verdict = workspace.json("reproduce", run, expect=2)
    assert verdict["outcome"] == "not comparable" and verdict["first"] is None
    assert "the replay failed" in verdict["sentence"]
    assert {item["reason"] for item in verdict["items"]} == {"the replay did not end by itself"}


def test_output_files_are_copied_while_an_observed_script_runs(workspace: Workspace) -> None:
    store = str(workspace.root / ".m5ws" / "store")
    workspace.m5ws("run", "--no-progress", "--checkpoint-minutes", "1e-6", "--", "train.py", "copied", "2", store)


@pytest.mark.parametrize("fault", ["", "shuffled"])
def test_a_resume_from_the_scripts_own_checkpoint_is_checked(workspace: Workspace, tmp_path: Path, fault: str) -> None:
    words = ("train.py", "resuming", "8", str(tmp_path / "died"), *filter(None, [fault]))
    workspace.m5ws("run", "--no-progress", "--fingerprint-every", "1000", "--", *words, expect=1)
    (run,) = [run["id"] for run in workspace.json("ls")["runs"]]
    workspace.m5ws("resume", run, "--no-progress")
    history = workspace.history(run)
    assert sorted(history.steps[0]) == list(range(1, 9)) and history.begun == [(0, 1), (3, 2)]
    assert sorted(history.states[0]) == [0, 1, 2, 4, 5]  # After step 4 too, the first step of the second attempt.
    inexact = [notice.message for notice in history.notices if notice.kind == "inexact-resume"]
    assert bool(inexact) == bool(fault) and (not fault or "batch" in inexact[0])
    verdict = workspace.json("reproduce", run, expect=int(bool(fault)))
    assert verdict["outcome"] == ("diverged" if fault else "reproduced")
    assert not fault or verdict["first"]["step"] == 4


def test_a_verdict_on_an_unplaced_attempt_judges_files_and_names_the_needed_line(
    workspace: Workspace, tmp_path: Path
) -> None:
    words = ("train.py", "resuming", "8", str(tmp_path / "died"), "inexact")
    workspace.m5ws("run", "--no-progress", "--", *words, expect=1)
    (run,) = [run["id"] for run in workspace.json("ls")["runs"]]
    workspace.m5ws("resume", run, "--no-progress")
    history = workspace.history(run)
    assert history.without_place == (2,) and sorted(history.steps[0]) == [1, 2, 3, 4, 5]
    verdict = workspace.json("reproduce", run, expect=1)
    # The optimizer was not restored, so the file with its state differs.
    assert verdict["first"]["kind"] == "file" and verdict["compared"]["steps"] == 5
    assert any("m5ws.resumed_at(step)" in gap["sentence"] for gap in verdict["not_compared"])
