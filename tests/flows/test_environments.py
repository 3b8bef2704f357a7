"""The packages that ranks loaded decide whether a changed environment matters, to a replay and to a resumed run."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from m5ws.records.ledger import Imported, RankEnded
from m5ws.repository.ledger import ledger
from m5ws.runs import state
from tests.support.workspace.checkouts import commit_all
from tests.support.workspace.workspaces import make_workspace

_MODULES = ("greeting", "late", "inworker", "idle")
_SCRIPT = """\
import os, sys
sys.path.insert(0, {site!r})
import greeting
{rest}"""
_IN_STEPS = """\
    if step.number == 3:
        import late
    if step.number == 2 and (child := os.fork()) == 0:
        import inworker
        os._exit(0)
    if step.number == 2:
        os.waitpid(child, 0)
    if step.number == 9 and os.path.exists({fails!r}):
        os._exit(9)
    x, y = step.next_batch()
"""


class _Place:
    """A workspace, and a folder of installed distributions for its script."""

    def __init__(self, folder: Path) -> None:
        self.site, self.fails = folder / "site", folder / "fails"
        for name in _MODULES[:3]:
            self.install(name, "1.0")
        self.workspace = make_workspace(folder / "w", "fsdp.py", nproc=1)
        script = self.workspace.root / "train.py"
        rest = script.read_text().replace("    x, y = step.next_batch()\n", _IN_STEPS.format(fails=str(self.fails)))
        script.write_text(_SCRIPT.format(site=str(self.site), rest=rest))
        self.workspace.edit("config.yaml", "hidden: 128", "hidden: 16")
        commit_all(self.workspace.root)

    def install(self, name: str, version: str) -> None:
        info = self.site / f"{name}-1.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (self.site / f"{name}.py").touch()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text(f"{name}.py,,\n{name}-1.dist-info/METADATA,,\n")

    def loaded(self, run: str, attempt: int) -> set[str]:
        events = ledger.events(self.workspace.repo, run, attempt, "0")
        return {place for event in events if isinstance(event, Imported) for place in event.modules}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Place:
    made = _Place(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(made.site), prepend=os.pathsep)
    return made


def _rated(changes: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    return {change["name"]: (change["rating"], change["detail"]) for change in changes}


@pytest.mark.long
def test_only_another_version_of_an_imported_distribution_stops_a_replay(place: _Place) -> None:
    run = place.workspace.train()
    assert {"greeting", "late", "inworker", "torch", "m5ws"} <= place.loaded(run, 1)
    place.install("idle", "1.0")
    verdict = place.workspace.json("reproduce", run)
    assert verdict["outcome"] == "reproduced"
    assert _rated(verdict["changes"]) == {"distribution.idle": ("cannot", "no rank imported it")}
    for name in ("greeting", "late", "inworker"):
        place.install(name, "2.0")
        refused = place.workspace.json("reproduce", run, expect=2)
        assert f"distribution.{name}: 1.0 → 2.0" in refused["sentence"] and "idle" not in refused["sentence"]
        place.install(name, "1.0")


@pytest.mark.long
def test_a_distribution_imported_only_by_the_replay_can_change_bits(place: _Place) -> None:
    place.workspace.edit(
        "train.py", "import greeting\n", "try:\n    import idle\nexcept ImportError:\n    import greeting\n"
    )
    run = place.workspace.train()
    place.install("idle", "1.0")
    done = place.workspace.m5ws("reproduce", "--json", run)
    assert "1 differences that cannot change bits" in done.stderr
    assert _rated(json.loads(done.stdout)["changes"])["distribution.idle"] == (
        "can",
        "training can import the distribution",
    )


def test_a_killed_attempt_records_its_distributions_and_a_resume_shows_changes(place: _Place) -> None:
    place.fails.touch()
    [run] = [row["id"] for row in _failed(place)]
    assert {"greeting", "late", "inworker"} <= place.loaded(run, 1)
    assert not [event for event in ledger.events(place.workspace.repo, run, 1, "0") if isinstance(event, RankEnded)]
    place.fails.unlink()
    place.install("late", "2.0")
    place.install("idle", "1.0")
    refused = place.workspace.m5ws("resume", run, expect=2).stderr
    assert "differs: environment distribution.late: 1.0 → 2.0\n" in refused and ledger.attempts(
        place.workspace.repo, run
    ) == [1]
    place.workspace.m5ws("resume", run, "--env", "warn")
    shown = place.workspace.m5ws("show", run).stdout
    assert "environment, compared with the first attempt:\n    distribution.late: 1.0 → 2.0" in shown
    assert "1 differences that cannot change bits" in shown
    environments = place.workspace.json("show", run)["environments"]
    assert {name: rating for name, (rating, _) in _rated(environments["2"]).items()} == {
        "distribution.late": "can",
        "distribution.idle": "cannot",
    }
    compared = place.workspace.json("diff", run, run)
    assert compared["changes"] == [] and list(compared["attempts"][run]) == ["2"]
    assert f"attempt 2 of run {run}" in place.workspace.m5ws("diff", run, run).stdout
    assert "other-environment" in shown


def _failed(place: _Place) -> Any:
    place.workspace.m5ws("run", "--no-progress", expect=1)
    return place.workspace.json("ls")["runs"]


def test_a_variable_alone_gives_a_notice_for_the_declared_image_and_no_other_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=1)
    declared, other = (f"train@sha256:{letter * 64}" for letter in "ab")
    with (workspace.root / "m5ws.toml").open("a") as file:
        file.write(f"[environment]\nimage = '{declared}'\n")
    commit_all(workspace.root)
    # As in a container without a container engine.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(str(shutil.which("git")))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for claim in ("", other):
        monkeypatch.setenv("M5WS_CONTAINER_IMAGE", claim)
        refused = workspace.m5ws("run", expect=None)
        assert refused.returncode != 0 and "image" in refused.stderr
    monkeypatch.setenv("M5WS_CONTAINER_IMAGE", declared)
    notices = state.load(workspace.repo, workspace.train()).notices
    (message,) = (notice.message for notice in notices if notice.kind == "environment")
    assert declared in message and "M5WS_CONTAINER_IMAGE, unverified" in message
