"""Each stage of an attempt that may take long is reported before it begins, also after Ctrl-C."""

from pathlib import Path

from m5ws.attempts import leader, planning
from m5ws.records.run import LaunchSpec
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository
from tests.support.records.bisect_lab import Lab


def _stages(lab: Lab, folder: Path) -> list[str]:
    snapshot = runs.load(lab.ports.repo, lab.good).snapshot
    new = planning.new_run(snapshot, LaunchSpec(command=("a.py",), outputs=("out",)))
    plan = planning.plan(lab.ports.repo, new, folder / "home", folder, {})
    stages: list[str] = []
    leader.execute(lab.ports, plan, None, lambda stage, done, total: stages.append(stage))
    return [stage.partition(" ")[0] for stage in dict.fromkeys(stages)]


def test_an_attempt_reports_its_stages_in_order(repo: Repository, tmp_path: Path) -> None:
    lab = Lab(repo, tmp_path)
    lab.train("a", lambda bad, step: 0.0)
    assert _stages(lab, tmp_path) == ["materialising", "starting", "observing", "running", "storing", "removing"]
    lab.ranks.stop_at = lab.ranks.begun + 1
    assert _stages(lab, tmp_path) == ["materialising", "starting", "observing", "running", "stopping", "storing"]
