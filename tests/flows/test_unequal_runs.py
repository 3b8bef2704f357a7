"""Rule: a run whose final weights its replay does not have is never reproduced, whatever was not recorded of it."""

from pathlib import Path

import pytest

from tests.support.workspace.workspaces import make_workspace

FAULTS = {
    "exact": "sampled",
    "exact and counted": "reproduced",
    "exact, modules in turn": "reproduced",
    "exact, optimizers in turn": "sampled",
    "exact, optimizers at intervals": "reproduced",
    "order": "diverged",
    "more-steps": "diverged",
    "noise": "diverged",
    "unobserved": "nondeterministic",
    "own updates": "nondeterministic",
    "no step": "sampled",
    "buffers": "diverged",
    "buffers of a module that is not called again": "sampled",
    "best weights": "diverged",
    "rounded": "nondeterministic",
}
"""The outcome of the replay of a resumed run, by the fault in the resume or in the training."""


_CAMPAIGN = ("exact, modules in turn", "exact, optimizers in turn", "unobserved", "no step", "buffers", "rounded")
"""The faults that `make soak` tries."""


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=[pytest.mark.soak] * (fault in _CAMPAIGN)) for fault in FAULTS]
)
def test_a_run_with_other_final_weights_is_not_reproduced(fault: str, tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "unequal.py", nproc=1, run='outputs = ["out"]')
    workspace.m5ws("run", "--no-progress", "--", "train.py", fault, str(tmp_path / "beside"), expect=1)
    (run,) = [run["id"] for run in workspace.json("ls")["runs"]]
    workspace.m5ws("resume", run, "--no-progress")
    expected = FAULTS[fault]
    verdict = workspace.json(
        *("reproduce", run), expect={"nondeterministic": 1, "diverged": 1, "not comparable": 2}.get(expected, 0)
    )
    finals = (tmp_path / "beside" / "finals").read_text().split()
    assert len(finals) >= 2 and (finals[0] == finals[1]) == fault.startswith("exact")
    assert verdict["outcome"] == expected, verdict["sentence"]
    if expected == "sampled":
        assert ("model2" if fault.startswith("buffers") else "m5ws.resumed_at") in verdict["sentence"]
