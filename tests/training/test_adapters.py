"""Adapters of installed frameworks, in one process: a resume from each checkpoint is exact, or the mode is refused.

tests/services runs this file with the frameworks of its environments, and kills the examples.
"""

import gc
import importlib.util
import itertools
import random
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from m5ws.errors import UsageError
from m5ws.records.ledger import CheckpointPublished, DataOrder, Phase, Step
from m5ws.records.sample_ids import Range, parse_ranges
from m5ws.training.state.plain_state import RestoreError
from tests.training.conftest import SCRIPTS

_RESUMES = 1
"""Checkpoints from which each training is resumed, of the checkpoints that it makes after each step."""


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("frameworks", SCRIPTS / "frameworks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


frameworks = _load()


@pytest.fixture(scope="module", autouse=True)
def _imports() -> None:
    """Import the frameworks, and freeze their objects: each training of a Trainer collects garbage."""
    with suppress(ImportError):
        importlib.import_module("lightning")
        importlib.import_module("transformers.trainer")
        gc.freeze()


def _cases() -> Iterator[Any]:
    for accumulate, by_epochs in itertools.product((1, 4), (False, True)):
        settings = {"accumulate": accumulate, "by_epochs": by_epochs}
        yield pytest.param(frameworks.use_trainer, settings, id=f"trainer, {settings}")
        for check in (1.0, 2):
            yield pytest.param(
                frameworks.use_lightning, settings | {"check": check}, id=f"lightning, {settings}, {check}"
            )
    for accumulate in (1, 4):
        yield pytest.param(frameworks.use_accelerate, {"accumulate": accumulate}, id=f"accelerate, {accumulate}")
    yield pytest.param(frameworks.use_trainer, {"workers": 2}, id="trainer, workers")
    yield pytest.param(frameworks.use_accelerate, {"num_workers": 2}, id="accelerate, workers")
    yield pytest.param(frameworks.use_accelerate, {"generator": True}, id="accelerate, generator")
    for options in ({}, {"num_workers": 2}, {"generator": True}):
        yield pytest.param(frameworks.use_lightning, {"noisy": options}, id=f"lightning, noise, {options}")


def _script(use: Any, settings: dict[str, Any]) -> Any:
    """Return a script that makes its generators and loaders in each attempt."""
    settings = dict(settings)
    noisy = settings.pop("noisy", None)

    def script() -> None:
        fresh = {key: frameworks.own() if key == "generator" else value for key, value in settings.items()}
        if noisy is not None:
            options = {key: frameworks.own() if key == "generator" else value for key, value in noisy.items()}
            fresh["data"] = DataLoader(frameworks.Rows(26, True), 3, shuffle=True, **options)
        use(**fresh)

    return script


@pytest.mark.parametrize(("use", "settings"), list(_cases()))
def test_a_resume_at_any_checkpoint_is_exact(
    use: Any, settings: dict[str, Any], in_process: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    script = _script(use, settings)
    whole, error = in_process(script, checkpoint_at=range(1, 99), fingerprint_at=())
    assert error is None, error
    last = max(whole.steps(0))
    published = whole.of(CheckpointPublished)
    assert [event.step for event in published] == list(range(1, last + 1))
    assert all("loss" in quantities and "lr" in quantities for quantities, _ in whole.steps(0).values())
    phases = {event.name for event in whole.of(Phase) if isinstance(event, Phase)}
    assert phases - {"evaluation"} == {"step", "save", "end"}
    assert ("evaluation" in phases) == (use is not frameworks.use_accelerate)
    # Other checkpoints in a campaign: `pytest --campaign-seed`.
    draw = random.Random(request.config.getoption("--campaign-seed") or str(settings))
    for event in draw.sample(published, min(_RESUMES, last)):
        torch.rand(event.step)
        again, error = in_process(script, resume=event.checkpoint, checkpoint_at=range(1, 99), fingerprint_at=())
        assert error is None, (event.step, error)
        assert again.steps(0) == {s: value for s, value in whole.steps(0).items() if s > event.step}, event.step
        assert again.states(0) == {s: value for s, value in whole.states(0).items() if s >= event.step}, event.step
        if event.step < last:
            assert again.contents[last] == whole.contents[last], event.step


def _loader_cases() -> Iterator[Any]:
    for accumulate, workers in ((1, 1), (4, 0)):
        for use in (frameworks.use_trainer, frameworks.use_lightning):
            settings = {"accumulate": accumulate, "by_epochs": accumulate == 1}
            yield pytest.param(use, settings, workers, id=f"{use.__name__}, {settings}")
    for form in ("dataloader", "iterable_dataset"):
        yield pytest.param(frameworks.use_session, {"form": form}, 0, id=form)


@pytest.mark.parametrize(("use", "settings", "workers"), list(_loader_cases()))
def test_a_resume_with_a_loader_of_m5ws_is_exact_and_records_the_samples(
    use: Any, settings: dict[str, Any], workers: int, in_process: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    collate, made = frameworks._collate, [0]

    def count(rows: list[Any]) -> Any:
        made[0] += 1
        return collate(rows)

    monkeypatch.setattr(frameworks, "_collate", count)

    def script() -> None:
        made[0] = 0
        loader = frameworks.make_loader(workers=workers)
        use(loader=loader, **settings)
        # Ends the workers. If the garbage collector finds the loader, torch waits five seconds for each worker.
        loader.rewind()

    whole, error = in_process(script, checkpoint_at=range(1, 99), fingerprint_at=())
    assert error is None, error
    steps = _samples(whole)
    # 26 samples in 9 batches: the last batch of an epoch begins the next epoch of the samples.
    sizes = [12, 12, 3] if settings.get("accumulate") == 4 else [3]
    assert [sum(stop - start for _, start, stop in ranges) for ranges in steps.values()] == [
        sizes[number % len(sizes)] for number in range(len(steps))
    ]
    places = [26 * epoch + place for ranges in steps.values() for epoch, *ends in ranges for place in range(*ends)]
    assert places == [*range(len(places))]
    assert whole.of(DataOrder)
    published = whole.of(CheckpointPublished)
    for event in (published[1], published[len(published) // 2], published[-2]):
        torch.rand(event.step)
        again, error = in_process(script, resume=event.checkpoint, checkpoint_at=range(1, 99), fingerprint_at=())
        assert error is None, (event.step, error)
        assert again.steps(0) == {s: value for s, value in whole.steps(0).items() if s > event.step}, event.step
        rest = {s: value for s, value in steps.items() if s > event.step}
        assert _samples(again) == rest, event.step
        # In this process if there are no workers. Batches that were done are not made again.
        assert workers or made[0] == sum(stop - start for ranges in rest.values() for _, start, stop in ranges) / 3
        assert again.contents[max(steps)] == whole.contents[max(steps)], event.step


def _samples(attempt: Any) -> dict[int, list[Range]]:
    """Return the ranges of samples that each step consumed."""
    return {event.step: parse_ranges(event.samples["web"]) for event in attempt.of(Step)}


_REFUSED = {
    "trainer, stream": (frameworks.use_trainer, {"data": frameworks.Stream()}, "IterableDataset"),
    "trainer, noise": (frameworks.use_trainer, {"data": frameworks.Rows(26, True)}, "draws random numbers"),
    "trainer, ignore_data_skip": (frameworks.use_trainer, {"ignore_data_skip": True}, "ignore_data_skip"),
    "trainer, two trainings": (frameworks.use_trainer, {"attach": 2}, "second training"),
    "lightning, stream": (frameworks.use_lightning, {"data": DataLoader(frameworks.Stream(), 3)}, "IterableDataset"),
    "lightning, plateau": (frameworks.use_lightning, {"plateau": True}, "ReduceLROnPlateau"),
    "lightning, reloads": (frameworks.use_lightning, {"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders"),
    "accelerate, stream": (frameworks.use_accelerate, {"data": frameworks.Stream()}, "IterableDataset"),
    "accelerate, noise": (frameworks.use_accelerate, {"data": frameworks.Rows(26, True)}, "draws random numbers"),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_an_inexact_mode_is_refused_with_its_reason(
    case: str, in_process: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    use, settings, reason = _REFUSED[case]
    attempt, error = in_process(partial(use, **settings))
    assert isinstance(error, UsageError) and reason in str(error) and error.hint
    assert len(attempt.steps(0)) <= 1 or case == "trainer, two trainings"


@pytest.mark.parametrize("use", [frameworks.use_trainer, frameworks.use_lightning, frameworks.use_accelerate])
def test_a_resume_with_other_data_is_refused(
    use: Any, in_process: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, error = in_process(use, checkpoint_at=(3,))
    assert error is None
    again, error = in_process(
        partial(use, data=frameworks.Rows(25)), resume=whole.of(CheckpointPublished)[0].checkpoint
    )
    assert isinstance(error, RestoreError) and "next batch differs" in str(error)
    assert again.steps(0) == {}


def test_a_trainer_resumes_only_if_its_best_checkpoint_exists(
    in_process: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 2}
    script = partial(frameworks.use_trainer, **settings, metric_for_best_model="eval_runtime")
    monkeypatch.chdir(tmp_path)
    whole, error = in_process(script, checkpoint_at=(3,))
    assert error is None
    at = whole.of(CheckpointPublished)[0].checkpoint
    again, error = in_process(script, resume=at)
    assert error is None and again.steps(0).keys() == set(range(4, frameworks.STEPS + 1))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again, error = in_process(script, resume=at)
    assert isinstance(error, UsageError) and "load_best_model_at_end" in str(error) and again.steps(0) == {}


@pytest.mark.parametrize("use", [frameworks.use_trainer, frameworks.use_lightning, frameworks.use_accelerate])
def test_the_adapter_line_does_nothing_outside_a_run(use: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    use()
    assert not list(tmp_path.glob("*.spool"))
