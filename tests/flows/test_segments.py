"""Segments of a run, each replayed from its checkpoint: equal segments prove the run, and faults are located."""

import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from m5ws.repository.references import runs
from tests.support.campaigns import soak_page
from tests.support.ranks.base_runs import BaseRuns
from tests.support.workspace.workspaces import Workspace, make_forgetful, make_workspace


@pytest.fixture(scope="module", params=["fsdp", pytest.param("zero", marks=pytest.mark.soak)])
def trained(
    request: pytest.FixtureRequest, base_runs: BaseRuns, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Workspace, str]:
    """A run of 10 steps on 2 ranks, with checkpoints after 4, 8 and 10."""
    return base_runs.copy(request.param, 2, tmp_path_factory.mktemp(request.param))


def test_a_segment_is_replayed_alone_from_its_checkpoint(trained: tuple[Workspace, str]) -> None:
    workspace, run = trained
    verdict = workspace.json("reproduce", run, "--segment", "2")
    assert (verdict["outcome"], verdict["segment"]["first"], verdict["segment"]["last"]) == ("sampled", 4, 8)
    assert verdict["compared"]["steps"] == 8 and verdict["compared"]["checkpoints"] == 1
    assert any("steps up to 4: given" in gap["sentence"] for gap in verdict["not_compared"])
    replayed = workspace.history(verdict["replay"])
    assert sorted(replayed.steps[0]) == [5, 6, 7, 8]
    assert replayed.contents == {8: workspace.history(run).contents[8]}


def test_all_segments_replayed_in_parallel_verify_the_run(trained: tuple[Workspace, str]) -> None:
    workspace, run = trained
    joint = workspace.json("reproduce", run, "--all-segments", "--parallel", "2")
    assert (joint["outcome"], joint["segments"], joint["of"]) == ("reproduced", 3, 3)
    assert [(verdict["segment"]["first"], verdict["segment"]["last"]) for verdict in joint["verdicts"]] == [
        (0, 4),
        (4, 8),
        (8, 10),
    ]
    shown = workspace.json("show", run)["joint"]
    assert (shown["outcome"], len(shown["verified"]), shown["differ"], shown["open"]) == ("reproduced", 3, [], [])
    assert shown["replays"] == [verdict["replay"] for verdict in joint["verdicts"]]
    assert "verified" in workspace.m5ws("show", run).stdout
    assert workspace.json("fsck")["damage"] == []
    # Together they did every step of the run, and none twice.
    assert sum(verdict["compared"]["steps"] for verdict in joint["verdicts"]) == 20


_LONG = (
    (
        "| training | ranks | steps | checkpoints | segments at a time | outcome | steps done again, on all ranks |"
        " the run | all segments, one at a time | side by side |"
    ),
    "|---|---|---|---|---|---|---|---|---|---|",
)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("kind", ["fsdp", "zero"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_thousand_steps_are_verified_segment_by_segment(tmp_path: Path, kind: str, ranks: int) -> None:
    trainer = "torchrun" if kind == "fsdp" else "deepspeed"
    workspace = make_workspace(tmp_path / "w", f"{kind}.py", trainer=trainer, nproc=ranks)
    for old, new in (("steps: 10", "steps: 1000"), ("hidden: 128", "hidden: 384"), ("batch: 8", "batch: 32")):
        workspace.edit("config.yaml", old, new)
    workspace.edit("m5ws.toml", "checkpoint_every = 4", "checkpoint_every = 100")
    times, joint = [time.monotonic()], {}
    run = workspace.train()
    for parallel in ("1", "2"):
        times.append(time.monotonic())
        joint = workspace.json("reproduce", run, "--all-segments", "--parallel", parallel)
    times.append(time.monotonic())
    again = sum(verdict["compared"]["steps"] for verdict in joint["verdicts"])
    seconds = [f"{after - before:,.0f} s" for before, after in pairwise(times)]
    row = "| " + " | ".join(map(str, (kind, ranks, 1000, 10, 2, joint["outcome"], again, *seconds))) + " |"
    print(row)
    soak_page.put("segments", _LONG, row, cells=2)
    assert (joint["outcome"], joint["segments"], joint["of"], again) == ("reproduced", 10, 10, 1000 * ranks)


@pytest.fixture(scope="module")
def small(base_runs: BaseRuns, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    return base_runs.copy("fsdp", 1, tmp_path_factory.mktemp("small"))


def test_reproduce_replays_chosen_steps_or_a_random_sample(small: tuple[Workspace, str]) -> None:
    workspace, run = small
    verdict = workspace.json("reproduce", run, "--from", "5", "--to", "8")
    assert (verdict["outcome"], verdict["segment"]["first"], verdict["segment"]["last"]) == ("sampled", 4, 8)
    sampled = workspace.json("reproduce", run, "--sample", "1", "--sample-seed", "3")
    assert (sampled["outcome"], sampled["segments"], sampled["of"]) == ("sampled", 1, 3)
    assert "33%" in sampled["reason"]["sentence"]
    for words in (("--segment", "4"), ("--from", "9", "--to", "11"), ("--sample", "4")):
        workspace.m5ws("reproduce", run, *words, expect=2)


def test_a_fault_is_found_only_in_its_own_segment(small: tuple[Workspace, str], tmp_path: Path) -> None:
    """A weight of the run was changed in its seventh step, and its script does not do that."""
    workspace, _ = small
    fault = tmp_path / "fault"
    fault.touch()
    lines = (
        f"    if step.number == 7 and __import__('os').path.exists({str(fault)!r}):",
        "        with torch.no_grad():",
        "            next(model.parameters()).add_(1e-3)",
        "    step.record(loss=loss",
    )
    workspace.edit("train.py", "    step.record(loss=loss", "\n".join(lines))
    run = workspace.train()
    fault.unlink()
    joint = workspace.json("reproduce", run, "--all-segments", expect=1)
    assert [verdict["outcome"] for verdict in joint["verdicts"]] == ["sampled", "diverged", "sampled"]
    assert joint["outcome"] == "diverged"
    again = joint["verdicts"][1]["recheck"]
    assert (again["last"], again["repeats"]) == (7, True)
    assert joint["reason"]["replay"] == joint["verdicts"][1]["replay"]
    assert sorted(workspace.history(again["replay"]).steps[0]) == [5, 6, 7]
    shown = workspace.json("show", run)["joint"]
    assert [verdict["last"] for verdict in shown["verified"]] == [4, 10] and [
        verdict["last"] for verdict in shown["differ"]
    ] == [8]
    first = joint["verdicts"][1]["first"]
    assert (first["step"], first["tensor_step"]) == (7, 7)
    assert first["tensor"].startswith(("model.", "optimizer."))


@pytest.mark.soak
def test_a_restore_that_is_not_exact_is_not_blamed_on_the_original(tmp_path: Path) -> None:
    """A run whose loader is not registered: from a checkpoint it reads other data, the same each time."""
    workspace = make_forgetful(tmp_path / "w")
    run = workspace.train()
    verdict = workspace.json("reproduce", run, "--segment", "2", expect=2)
    assert verdict["outcome"] == "not comparable" and verdict["sentence"].startswith("inexact restore")
    again = verdict["recheck"]
    assert (again["repeats"], again["start_equal"]) == (True, True)
    assert sorted(workspace.history(again["start"]).steps[0]) == list(range(1, verdict["first"]["step"] + 1))
    assert (
        "from the start"
        in workspace.m5ws("show", again["start"]).stdout + workspace.m5ws("show", verdict["replay"]).stdout
    )
    for words in (("--all-segments",), ("--sample", "2", "--sample-seed", "0")):
        joint = workspace.json("reproduce", run, *words, expect=2)
        assert joint["outcome"] == "not comparable"
        assert any("inexact restore" in verdict["sentence"] for verdict in joint["verdicts"])
        for each in joint["verdicts"]:
            # The first segment begins without a checkpoint.
            exact = each["segment"]["first"] == 0
            assert each["outcome"] == ("sampled" if exact else "not comparable")
            assert exact or each["recheck"]["start_equal"]


@pytest.mark.long
def test_ctrl_c_stops_the_replays_that_are_under_way(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=1)
    pause = f"time.sleep(3.0 if __import__('os').path.exists({str(slow)!r}) else 0.0)"
    workspace.edit("train.py", 'time.sleep(settings["pause_s"])', pause)
    run = workspace.train()
    slow.touch()
    process = workspace.start("reproduce", run, "--all-segments")
    replays: list[str] = []
    while not any(workspace.history(replay).steps for replay in replays):
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
        replays = runs.replays(workspace.repo, run)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    (replay,) = replays
    assert f"are left: {replay}" in printed
    done = workspace.history(replay)
    assert done.outcome == "interrupted" and max(done.steps[0]) < 4
    assert runs.verdict(workspace.repo, runs.load(workspace.repo, replay)) is None
