"""Certificates of scripts without a session, which are interrupted and resumed from their own checkpoints."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from m5ws.cli.terminal import output
from m5ws.cli.terminal.run_progress import RunProgress
from m5ws.records.ledger import AnyEvent
from m5ws.runs import state
from tests.support.workspace.workspaces import Workspace, make_workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path / "w", "interrupted.py", nproc=1, run='outputs = ["out"]')


def _certify(workspace: Workspace, kind: str, *options: str, expect: int, steps: int = 6) -> Any:
    return workspace.json("certify", *options, "--", "train.py", kind, str(steps), expect=expect)


def test_a_resume_with_all_state_is_certified(workspace: Workspace) -> None:
    certificate = _certify(workspace, "exact", "--restores", "2", "--parallel", "2", expect=0)
    assert certificate["outcome"] == "certified" and certificate["steps"] == 6
    # It saves every second step, and is killed before it can save.
    assert (certificate["interrupted"], certificate["restored"]) == ([4, 5], [2, 4])
    what = certificate["what"]
    assert (what["model"], what["optimizer"], what["ranks"]) == ("Sequential", "AdamW", "1")
    for verdict in certificate["verdicts"]:
        assert verdict["outcome"] == "reproduced"
        assert verdict["compared"]["steps"] == 6 and verdict["compared"]["tensor files"] >= 1
    assert "outputs-restored" in workspace.m5ws("show", verdict["replay"]).stdout
    first, _ = state.load(workspace.repo, verdict["replay"]).attempts
    assert first.reason is not None and first.reason.kind == "killed for a test"


def test_generators_that_are_not_restored_are_found_at_the_first_step(workspace: Workspace) -> None:
    certificate = _certify(workspace, "generators", "--restores", "2", "--sample-seed", "2", expect=1)
    assert (certificate["interrupted"], certificate["restored"]) == ([1, 5], [0, 4])
    _, verdict = certificate["verdicts"]
    assert certificate["outcome"] == "inexact" and verdict["recheck"]["start_equal"]
    assert (verdict["first"]["step"], verdict["first"]["quantity"]) == (5, "batch")
    shown = workspace.m5ws("show", verdict["replay"]).stdout
    assert "INEXACT RESUME" in shown and "NOT COMPARABLE" not in shown


def test_a_value_reset_by_a_resume_decides_only_as_a_named_result(workspace: Workspace) -> None:
    (verdict,) = _certify(workspace, "count", expect=0)["verdicts"]
    assert any((item["name"], item["place"]) == ("out/count.json", "steps") for item in verdict["items"])
    workspace.edit("m5ws.toml", 'outputs = ["out"]', 'outputs = ["out"]\nresults = ["out/count.json:steps"]')
    certificate = _certify(workspace, "count", expect=1)
    assert certificate["outcome"] == "inexact"
    assert certificate["verdicts"][0]["first"]["sentence"] == "result out/count.json:steps: steps"


def test_generators_that_no_step_draws_from_are_listed(workspace: Workspace) -> None:
    certificate = _certify(workspace, "undrawn", expect=0)
    (verdict,) = certificate["verdicts"]
    assert verdict["outcome"] == "sampled" and "enerators (torch)" in certificate["sentence"]
    assert any("differ after steps 5-6" in gap["sentence"] for gap in verdict["not_compared"])
    again = workspace.json("reproduce", verdict["replay"])
    assert again["outcome"] == "sampled" and again["first"] is None
    assert again["compared"]["steps"] == 6 and "enerators (torch)" in again["sentence"] and again["recheck"] is None


def test_a_script_that_starts_from_the_beginning_is_not_certified(workspace: Workspace) -> None:
    """The script does not load its checkpoint."""
    certificate = _certify(workspace, "beginning", expect=2)
    assert certificate["outcome"] == "not comparable" and certificate["restored"] == [0]
    assert "nothing was resumed" in certificate["sentence"]


def test_a_script_that_does_not_repeat_itself_is_nondeterministic(workspace: Workspace) -> None:
    certificate = _certify(workspace, "noise at last", expect=1)
    assert certificate["outcome"] == "nondeterministic"
    (verdict,) = certificate["verdicts"]
    assert (verdict["first"]["step"], verdict["first"]["quantity"]) == (6, "batch")


def test_a_script_that_cannot_resume_is_refused_with_a_remedy(workspace: Workspace) -> None:
    refused = workspace.m5ws("certify", "--", "train.py", "elsewhere", "6", expect=2).stderr
    assert "[run] outputs" in refused
    # The same, with a file in the folder of outputs that is written at the end.
    printed = workspace.m5ws("certify", "--", "train.py", "elsewhere", "6", "end", expect=2).stdout
    assert "nothing was resumed" in printed
    refused = workspace.m5ws("certify", "--", "train.py", "exact", "1", expect=2).stderr
    assert "nothing to interrupt" in refused
    refused = workspace.m5ws("certify", "--", "train.py", "exact", "0", expect=2).stderr
    assert "torch.optim" in refused and "m5ws resume" in refused


@pytest.mark.parametrize(("moment", "left"), [("training (", 0), ("Step", 1), ("resuming", 2)])
def test_ctrl_c_ends_certify_and_prints_the_remaining_runs(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, moment: str, left: int
) -> None:
    note, watch = output.print_note, RunProgress.watch

    def press(moment_begun: str) -> None:
        if moment_begun.startswith(moment):
            os.kill(os.getpid(), signal.SIGINT)

    def noted(text: str) -> None:
        note(text)
        press(text)

    def watched(shown: RunProgress, rank: str, event: AnyEvent) -> None:
        watch(shown, rank, event)
        press(type(event).__name__)

    monkeypatch.setattr(output, "print_note", noted)
    monkeypatch.setattr(RunProgress, "watch", watched)
    stopped = workspace.m5ws("certify", "--", "train.py", "exact", "6", expect=130)
    assert stopped.stdout == "" and "nothing is certified" in stopped.stderr
    runs = [run["id"] for run in workspace.json("ls")["runs"]]
    assert len(runs) == left and all(run in stopped.stderr for run in runs)
    if left:
        assert len(workspace.json("rm", "--dry-run", *runs)["removed"]) == left
