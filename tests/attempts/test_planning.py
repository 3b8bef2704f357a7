"""Refusals before a run is launched, and the plan of a run."""

from pathlib import Path

import pytest

from m5ws.attempts import environment_check, planning
from m5ws.config.settings import RunSettings
from m5ws.environment import drift
from m5ws.errors import UsageError
from m5ws.launch import import_path
from m5ws.records.environment import Observed
from m5ws.records.ledger import NODE, AttemptStarted
from m5ws.repository.repository import Repository
from m5ws.snapshot import snapshot
from m5ws.workspace import Workspace, find
from tests.support.records import planted
from tests.support.workspace.workspaces import make_workspace


def _take(here: Workspace, repo: Repository, folder: Path) -> snapshot.CapturedSnapshot:
    ports = (here.source(), None, here.tokenizers(), here.observer(), folder / "index")
    return snapshot.take(here.root, here.settings, repo, *ports)


_TOKEN = "hf" + "_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ012345"


@pytest.mark.parametrize(
    "command", [("t.py", f"--token={_TOKEN}"), ("t.py", "--db", "postgres://ada:s3cretpassword@host/db")]
)
def test_secrets_in_the_command_or_environment_of_a_run_are_refused(command: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="secret"):
        planning.spec(RunSettings(), planning.RunOptions(command=command))
    with pytest.raises(UsageError, match=r"environment\.WANDB_API_KEY"):
        planning.spec(
            RunSettings(environment={"WANDB_API_KEY": "0123456789abcdef"}), planning.RunOptions(command=("t.py",))
        )
    ordinary = RunSettings(environment={"NCCL_DEBUG": "INFO", "TOKENIZERS_PARALLELISM": "false"})
    assert (
        planning.spec(ordinary, planning.RunOptions(command=("t.py", "--lr=1e-3"))).environment == ordinary.environment
    )


def test_planning_a_run_writes_nothing(repo: Repository, tmp_path: Path) -> None:
    here = find(make_workspace(tmp_path / "w", "plain.py").root)
    taken = _take(here, repo, tmp_path)
    before = [found.key for found in repo.store.list("")]
    environment = {"PYTHONPATH": f"{here.root}/lib:{tmp_path}/elsewhere"}
    planned = planning.plan(
        repo,
        planning.new_run(taken.id, planning.spec(here.settings.run, planning.RunOptions())),
        here.home,
        here.root,
        environment,
    )
    assert (planned.attempt, planned.resume, planned.request.argv[-1]) == (1, None, "train.py")
    # The record of the run does not have a folder of the checkout, and its replays would not.
    assert planned.request.environment["PYTHONPATH"] == f"{tmp_path}/elsewhere"
    assert planned.request.environment["OMP_NUM_THREADS"] == "1"
    assert [found.key for found in repo.store.list("")] == before and not planned.directory.exists()


@pytest.mark.parametrize("is_new", [True, False])
def test_only_an_existing_run_gets_the_hint_to_rebuild_its_environment(is_new: bool) -> None:
    change = drift.rate("declared", "image", "registry/train@sha256:0", None)
    with pytest.raises(environment_check.EnvironmentDiffers, match="image") as raised:
        environment_check.refuse((change,), is_new=is_new)
    assert ("--env rebuild" in raised.value.hint) != is_new


def test_an_attempt_that_was_killed_before_its_environment_was_recorded_does_not_prevent_the_next(
    tmp_path: Path,
) -> None:
    made = make_workspace(tmp_path / "w", "plain.py", nproc=1)
    here = find(made.root)
    repo = here.repository(create=True)
    spec = planning.spec(here.settings.run, planning.RunOptions())
    run = planted.run(repo, "a" * 12, _take(here, repo, tmp_path).id, spec=spec)
    observed = Observed(facts={"cpu.model": "new"})
    ports = here.ports(repo)
    for attempt, known in ((1, None), (2, "old"), (3, None)):
        if known is None:
            started = AttemptStarted(attempt=attempt, host="h")
            planted.append(repo, run.id, attempt, NODE, started)
        else:
            digest = repo.objects.put_record(Observed(facts={"cpu.model": known}))
            planted.begin(repo, run.id, attempt, digest)
        place = (here.home, here.root, here.environment, None, here.settings.checkpoint)
        plan = planning.plan(repo, run, *place, from_scratch=True)
        assert plan.attempt == attempt + 1
        changes = environment_check.differences(ports, plan, observed, {})
        # From the second attempt on, its environment counts.
        assert [change.name for change in changes if change.part == "environment"] == (
            [] if attempt == 1 else ["cpu.model"]
        )


def test_folders_of_the_workspace_on_pythonpath_are_recorded_with_the_run(tmp_path: Path) -> None:
    shell = {"PYTHONPATH": f"{tmp_path}/w/src:/opt/lib:"}
    assert import_path.recorded({}, tmp_path / "w", shell) == {"PYTHONPATH": "src:/opt/lib"}
    assert import_path.recorded({"PYTHONPATH": "lib"}, tmp_path / "w", shell) == {}
    assert import_path.recorded({}, tmp_path / "other", shell) == {}


@pytest.mark.parametrize(
    ("settings", "names"),
    [(RunSettings(trainer="deepspeed"), "DeepSpeed"), (RunSettings(environment={"MKL_CBWR": "AVX2"}), "MKL_CBWR")],
)
def test_settings_without_portable_bits_are_refused_before_the_launch(
    repo: Repository, tmp_path: Path, settings: RunSettings, names: str
) -> None:
    workspace = make_workspace(tmp_path / "w", "plain.py")
    (workspace.root / "m5ws.toml").write_text('[determinism]\nlevel = "portable"\n[config]\nfiles = []\n')
    here = find(workspace.root)
    taken = _take(here, repo, tmp_path)
    new = planning.new_run(taken.id, planning.spec(settings, planning.RunOptions(command=("train.py",))))
    with pytest.raises(UsageError, match=names) as raised:
        planning.plan(repo, new, here.home, here.root, {})
    assert raised.value.hint
    plain = planning.new_run(
        taken.id, planning.spec(RunSettings(environment={"A": "b"}), planning.RunOptions(command=("train.py",)))
    )
    planned = planning.plan(repo, plain, here.home, here.root, {})
    assert planned.request.environment["ATEN_CPU_CAPABILITY"] == "avx2"
