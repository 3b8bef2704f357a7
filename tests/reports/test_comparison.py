"""Comparisons of runs: changed inputs against results, and the first step that differs."""

from pathlib import Path

import pytest

from m5ws.errors import UsageError
from m5ws.records.environment import Observed
from m5ws.records.ledger import NODE, AttemptEnded, Event, State, Step
from m5ws.records.run import LaunchSpec
from m5ws.reports import comparison, comparison_page, curves
from m5ws.repository.repository import Repository
from m5ws.reproduce.compare import compare_histories
from m5ws.runs import history
from m5ws.store.local import LocalStore
from tests.pages.reading import read
from tests.support.records import planted
from tests.support.stores.counting_store import CountingStore


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository.create(LocalStore(tmp_path / "store", durable=False))


def _run(repo: Repository, folder: Path, number: int, losses: list[float], lr: str = "0.1", seed: int = 3) -> str:
    code = planted.tree(repo, folder / "code", {"train.py": "print(1)\n"})
    config = planted.tree(repo, folder / lr, {"config.yaml": f"lr: {lr}\n"})
    snapshot = planted.publish(repo, planted.snapshot(code, config=config))
    spec = LaunchSpec(command=("train.py",), seed=seed)
    run = planted.run(repo, f"{number:012x}", snapshot, spec=spec, created_s=float(number)).id
    _attempt(repo, run, 1, losses)
    return run


def _attempt(repo: Repository, run: str, attempt: int, losses: list[float], begin: int = 0) -> None:
    resume = f"{begin:010d}-{attempt - 1:04d}" if begin else None
    facts = repo.objects.put_record(Observed(facts={"torch": "2.13.0", "gpu.model": "H100"}))
    planted.begin(repo, run, attempt, observed=facts, resume=resume)
    events: list[Event] = []
    for step, loss in enumerate(losses, begin + 1):
        events.append(Step(step=step, quantities={"loss": loss.hex(), "lr": (0.5).hex()}, total=9))
        events.append(State(step=step, tensors={"w": loss.hex()}))
    for rank in ("0", "1"):
        planted.append(repo, run, attempt, rank, *events)
    planted.append(repo, run, attempt, NODE, AttemptEnded(outcome="finished", exit_code=0))


def test_inputs_that_differ_stand_beside_results_and_the_first_step_that_differs(
    repo: Repository, tmp_path: Path
) -> None:
    first = _run(repo, tmp_path, 1, [3.0, 2.0, 1.0])
    same = _run(repo, tmp_path, 2, [3.0, 2.0, 1.0])
    other = _run(repo, tmp_path, 3, [3.0, 1.5], "0.2", seed=4)
    found, drawn = comparison.compare(repo, [first, same, other])
    inputs = {one.label: one.values for one in found.inputs}
    assert inputs == {"lr": ("0.1", "0.1", "0.2"), "launch seed": ("3", "3", "4")}
    assert [run.loss for run in found.runs] == [1.0, 1.0, 1.5]
    assert found.runs[1].first is None and found.runs[1].compared == 3
    divergence = found.runs[2].first
    assert divergence is not None and (divergence.step, divergence.quantity) == (2, "loss")
    assert drawn[2]["loss"] == [(1, 3.0), (2, 1.5)]
    reader = read(comparison_page.build(found, drawn))
    assert len([name for name, _ in reader.tags if name == "figure"]) == 2
    assert "step 2, loss" in reader.text and "none in 3 common steps" in reader.text


def test_a_repeated_step_counts_with_the_value_of_the_later_attempt(repo: Repository, tmp_path: Path) -> None:
    first = _run(repo, tmp_path, 1, [3.0, 2.0, 9.0])
    _attempt(repo, first, 2, [1.0, 0.5], begin=2)
    done = history.load(repo, first)
    assert curves.of_steps(done.steps[0])["loss"] == [(1, 3.0), (2, 2.0), (3, 1.0), (4, 0.5)]
    other = history.load(repo, _run(repo, tmp_path, 2, [3.0, 2.0, 1.0, 0.25]))
    divergence = compare_histories(done, other).first()
    assert divergence is not None and divergence.step == 4


def test_ledgers_of_other_ranks_are_not_read(repo: Repository, tmp_path: Path) -> None:
    names = [_run(repo, tmp_path, number, [1.0]) for number in (1, 2)]
    counting = CountingStore(repo.store)
    history.load(Repository.open(counting), names[0], ranks={"0"})
    assert not [key for key in counting.gets if "/0001/1/" in key]


def test_a_comparison_of_a_single_run_or_too_many_runs_is_refused(repo: Repository, tmp_path: Path) -> None:
    run = _run(repo, tmp_path, 1, [1.0])
    for names in ([run], [run, run], [f"{number:012x}" for number in range(51)]):
        with pytest.raises(UsageError):
            comparison.compare(repo, names)
