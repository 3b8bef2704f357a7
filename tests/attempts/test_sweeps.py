"""Sweeps in a store: the parts of runs that keys belong to, derived runs, and the state of all runs."""

from pathlib import Path

import msgspec
import pytest

from m5ws.attempts import fork, sweep_grid, sweeps
from m5ws.config.flatten import flatten
from m5ws.errors import NotFound, UsageError
from m5ws.records.checkpoint import Content
from m5ws.records.removal import Removal
from m5ws.records.run import LaunchSpec, Run, Sweep
from m5ws.repository import removals
from m5ws.repository.references import ids, run_index, runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.runs import listing
from m5ws.snapshot.config import overrides
from tests.support.records import mlflow_runs as written
from tests.support.records import planted

_COMMAND = ("train.py", "--lr", "1e-3", "--betas", "0.9", "0.95", "model.width=64")


@pytest.fixture
def base(repo: Repository, tmp_path: Path) -> Run:
    """A run that is not published, of a snapshot with the config keys model and train."""
    snapshot = written.publish_snapshot(repo, tmp_path / "source")
    return Run(id=runs.new_id(), snapshot=snapshot, spec=LaunchSpec(command=_COMMAND, seed=7), name="rates")


def _create(repo: Repository, base: Run, *texts: str) -> Sweep:
    return sweeps.create(repo, base, sweep_grid.parse(texts))


def _publish(repo: Repository, sweep: Sweep, base: Run, position: int) -> Run:
    run = sweeps.derive(repo, sweep, base, sweeps.list_planned(sweep)[position])
    runs.publish(repo, run)
    return run


def test_a_key_belongs_to_the_command_the_config_or_the_seed(repo: Repository, base: Run) -> None:
    sweep = _create(repo, base, "lr=1e-4,3e-4", "command:model.width=32,64", "train.warmup=10,20", "seed=0:2")
    last = sweeps.derive(repo, sweep, base, sweeps.list_planned(sweep)[-1])
    assert last.spec.command == ("train.py", "--lr", "3e-4", "--betas", "0.9", "0.95", "model.width=64")
    assert last.spec.seed == 1 and last.name == "rates lr=3e-4 model.width=64 train.warmup=20 seed=1"
    ((name, data),) = overrides.config_files(repo, snapshots.load(repo, last.snapshot).config).items()
    assert (flatten(name, data) or {})["train.warmup"] == "20"
    (annotation,) = snapshots.annotations(repo, last.snapshot)
    assert annotation.derived_from == base.snapshot


@pytest.mark.parametrize(
    "text",
    ["model.width=32,64", "train.lrr=1,2", "train.lr=1,fast", "seed=0,x", "seed=-1,0", "betas=1,2", "train.lr=[,]"],
)
def test_an_invalid_key_or_value_is_refused_before_the_first_write(repo: Repository, base: Run, text: str) -> None:
    before = {stat.key for stat in repo.store.list("")}
    with pytest.raises(UsageError, match="m5ws sweep"):
        _create(repo, base, text)
    assert {stat.key for stat in repo.store.list("")} == before


@pytest.fixture
def origin(repo: Repository, base: Run) -> Run:
    """A finished run of 8 steps with a checkpoint after the last."""
    run = planted.run(repo, base.id, base.snapshot, spec=base.spec)
    planted.begin(repo, run.id)
    written.train(repo, run, range(1, 9), total=8)
    planted.checkpoint(repo, run.id, 8, Content(format="dcp/1", world=1))
    written.end(repo, run)
    return run


def test_runs_of_a_sweep_start_from_a_checkpoint(repo: Repository, origin: Run) -> None:
    request = fork.ForkRequest(checkpoint=f"{origin.id}@8", restart=("data",))
    start = fork.new_run(repo, request)
    sweep = _create(repo, start, "lr=1e-3,3e-4", "train.lr=1,2")
    swept = [_publish(repo, sweep, start, position) for position in range(4)]
    starts = [(run.parent.run, run.parent.step, run.parent.restart) for run in swept if run.parent is not None]
    assert starts == [(origin.id, 8, ("data",))] * 4
    # The first two have the original's command. Their configs differ from the original's, as the other runs' configs.
    assert {run.parent.settings for run in swept if run.parent is not None} == {"script"}
    # Any run of a sweep is enough to derive the other runs, with the start of each.
    assert sweeps.derive(repo, sweep, swept[3], sweeps.list_planned(sweep)[0]) == swept[0]
    assert listing.list_runs(repo, names=[swept[0].id])[0].sweep == sweep.id


def test_a_sweep_run_with_the_original_value_keeps_the_settings_of_the_checkpoint(
    repo: Repository, origin: Run
) -> None:
    start = fork.new_run(repo, fork.ForkRequest(checkpoint=f"{origin.id}@8"))
    sweep = _create(repo, start, "lr=1e-3,3e-4")
    second = _publish(repo, sweep, start, 1)
    first = _publish(repo, sweep, second, 0)
    settings = [run.parent.settings for run in (first, second) if run.parent is not None]
    assert settings == ["checkpoint", "script"]


def test_a_seed_without_an_effect_is_refused(repo: Repository, origin: Run) -> None:
    for restart in ((), ("generators",)):
        request = fork.ForkRequest(checkpoint=f"{origin.id}@8", restart=restart)
        start = fork.new_run(repo, request)
        if restart:
            assert len(sweeps.list_planned(_create(repo, start, "seed=0:3"))) == 3
        else:
            with pytest.raises(UsageError, match="generators"):
                _create(repo, start, "seed=0:3")


def test_any_run_of_a_sweep_describes_the_whole_sweep(repo: Repository, base: Run) -> None:
    sweep = _create(repo, base, "train.lr=1,2", "seed=0:2")
    with pytest.raises(NotFound):
        sweeps.load(repo, sweep.id)
    third = _publish(repo, sweep, base, 2)
    assert ids.resolve(repo, sweep.id[:6], ("run", "sweep")) == ("sweep", sweep.id)
    stored = sweeps.load(repo, sweep.id)
    assert stored.sweep == msgspec.structs.replace(sweep, position=2)

    # The run has no attempt: a kill came before. It is started as it was published.
    assert [run.state for run in sweeps.list_all(repo, sweep)] == [sweeps.NOT_STARTED] * 4
    assert sweeps.derive(repo, sweep, stored, sweeps.list_planned(sweep)[2]) == third

    written.begin(repo, third)
    written.end(repo, third)
    second = _publish(repo, sweep, stored, 1)
    written.begin(repo, second)
    removals.publish(repo, Removal(run=second.id))
    states = [(run.state, run.is_waiting) for run in sweeps.list_all(repo, sweep)]
    assert states == [(sweeps.NOT_STARTED, True), (sweeps.REMOVED, False), ("finished", False), ("not started", True)]
    assert sweeps.list_begun(repo, sweep.id) == [third.id]


@pytest.mark.parametrize("is_indexed", [True, False])
def test_lists_name_the_sweep_of_a_run(repo: Repository, base: Run, is_indexed: bool) -> None:
    sweep = _create(repo, base, "seed=0:2")
    run, other = _publish(repo, sweep, base, 0), planted.run(repo, runs.new_id(), base.snapshot)
    if not is_indexed:
        for stat in [*repo.store.list(str(run_index.folder(run)))]:
            repo.store.delete(stat.key)
    assert {row.id: row.sweep for row in listing.list_runs(repo)} == {run.id: sweep.id, other.id: None}
    assert runs.sweeps(repo) == [sweep.id]
