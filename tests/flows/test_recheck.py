"""A diverged replay is stopped, and repeated before the verdict: is the run deterministic at all?"""

import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from m5ws.cli.terminal import explanation, verdict
from m5ws.cli.terminal.run_progress import RunProgress
from m5ws.records.ledger import AnyEvent
from tests.support.workspace.workspaces import Workspace, make_workspace

_RECORD = "    step.record(loss=loss"


def _edited(folder: Path, lines: Sequence[str]) -> Workspace:
    """Make a workspace whose script executes `lines` in each step, on one process."""
    workspace = make_workspace(folder / "w", "fsdp.py", nproc=1)
    workspace.edit("train.py", "import time\n", "import os\nimport time\n")
    workspace.edit("train.py", _RECORD, "\n".join([*lines, _RECORD]))
    return workspace


def _added(number: str) -> str:
    return f"torch.no_grad()(lambda: next(model.parameters()).add_({number}))()"


def _steps(workspace: Workspace, run: str) -> list[int]:
    return sorted(workspace.history(run).steps[0])


def test_two_replays_that_differ_mean_nondeterministic_and_the_replay_stops_early(tmp_path: Path) -> None:
    """Noise at step 5. Later steps are slow in a replay, so a replay that did not stop would show."""
    slow = tmp_path / "slow"
    lines = [
        "    if step.number == 5:",
        f"        {_added('int.from_bytes(os.urandom(4)) / 2**40')}",
        f"    time.sleep(4.0 if step.number > 5 and os.path.exists({str(slow)!r}) else 0.0)",
    ]
    workspace = _edited(tmp_path, lines)
    run = workspace.train()
    slow.touch()
    done = workspace.m5ws("reproduce", run, "--json", expect=1)
    assert "difference at step 5" in done.stderr and "repeating the replay" in done.stderr
    rows = workspace.json("show", run)["replays"]
    first, second = (row["id"] for row in rows)
    shown = workspace.json("show", first)["verdict"]
    assert shown == workspace.json("show", second)["verdict"]
    assert shown["outcome"] == "nondeterministic" and shown["first"]["step"] == 5
    again = shown["recheck"]
    assert (again["replay"], again["last"], again["repeats"], again["as_original"]) == (second, 5, False, False)
    assert again["first"]["step"] == 5 and again["first"]["original"] == shown["first"]["replayed"]
    assert (
        "two replays differ from each other" in shown["sentence"]
        and "the original cannot be judged" in shown["sentence"]
    )
    # The first replay was stopped soon after, without an extra checkpoint. The second replay ended there.
    assert 5 <= max(_steps(workspace, first)) < 10
    assert sorted(workspace.history(first).contents) in ([4], [4, 8])
    assert _steps(workspace, second) == [1, 2, 3, 4, 5]
    assert rows[1]["rechecks"] == first


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    """Return a run that read a file which no longer exists: a weight was changed in its seventh step."""
    folder = tmp_path_factory.mktemp("faulty")
    hidden = folder / "hidden"
    hidden.touch()
    lines = [f"    if step.number == 7 and os.path.exists({str(hidden)!r}):", f"        {_added('1e-3')}"]
    workspace = _edited(folder, lines)
    run = workspace.train()
    hidden.unlink()
    return workspace, run


def _given(faulty: tuple[Workspace, str], *options: str) -> Any:
    workspace, run = faulty
    return workspace.json("reproduce", run, *options, expect=1)


def test_two_replays_that_agree_name_no_cause_without_a_recorded_change(faulty: tuple[Workspace, str]) -> None:
    workspace, _ = faulty
    verdict = _given(faulty)
    assert verdict["outcome"] == "diverged" and verdict["first"]["step"] == 7
    again = verdict["recheck"]
    assert (again["last"], again["repeats"], again["first"]) == (7, True, None)
    assert verdict["sentence"].startswith("two replays agree with each other and differ from the original. No recorded")
    assert _steps(workspace, again["replay"]) == list(range(1, 8))
    # A stopped replay leaves its logs, and nothing of its inputs.
    work = workspace.root / ".m5ws" / "runs" / verdict["replay"] / "0001" / "work"
    assert not work.exists()


def test_ctrl_c_before_the_replay_trains_ends_the_command_with_a_message(
    faulty: tuple[Workspace, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(_shown: RunProgress, _what: str, _done: int, _total: int) -> None:
        raise KeyboardInterrupt

    workspace, run = faulty
    monkeypatch.setattr(RunProgress, "prepare", pressed)
    done = workspace.m5ws("reproduce", run, expect=130)
    assert done.stdout == "" and "before a verdict was known" in done.stderr


@pytest.mark.parametrize(
    ("options", "module", "shows", "told"),
    [
        ((), verdict, "print_recheck", "the second replay was stopped"),
        (("--explain", "--no-recheck"), explanation, "print_side", "the explanation was stopped"),
    ],
)
def test_ctrl_c_after_the_first_replay_ends_the_command_and_keeps_its_verdict(
    faulty: tuple[Workspace, str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    module: ModuleType,
    shows: str,
    told: str,
) -> None:
    workspace, run = faulty
    begun: list[object] = []
    watch = RunProgress.watch

    def pressed(shown: RunProgress, rank: str, event: AnyEvent) -> bool:
        if begun:
            raise KeyboardInterrupt
        return bool(watch(shown, rank, event))

    monkeypatch.setattr(module, shows, lambda *given: begun.append(given))
    monkeypatch.setattr(RunProgress, "watch", pressed)
    done = workspace.m5ws("reproduce", run, *options, expect=130)
    assert done.stdout == "" and f"{told}. The first replay diverged" in done.stderr and len(begun) == 1
    first = re.search(r"replaying \w+ as (\w+)", done.stderr)
    assert first is not None
    kept = workspace.json("show", first[1])["verdict"]
    assert (kept["outcome"], kept["recheck"]) == ("diverged", None)
    assert "stopped" in str(kept["explanation"]["sides"]) if options else "second replay" in kept["sentence"]


def test_a_replay_with_a_requested_change_has_no_second_replay(faulty: tuple[Workspace, str]) -> None:
    verdict = _given(faulty, "--set", "learning_rate=0.02")
    assert verdict["outcome"] == "diverged" and verdict["recheck"] is None
    assert "without a second replay" not in verdict["sentence"]
