"""Adapters of installed frameworks, in one process: a resume from each checkpoint is exact, or the mode is refused.

tests/services runs this file with the frameworks of its environments, and kills the examples.
"""

import importlib.util
import itertools
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import m5ws
from m5ws.errors import UsageError
from m5ws.records.ledger import CheckpointPublished
from m5ws.training.state.plain_state import RestoreError
from tests.conftest import loud_skip

_STEPS = 11
_RESUMES = 5
"""Checkpoints from which each training is resumed, of those that it makes after each step."""


class Rows(Dataset[Any]):
    """Rows, with noise from all global generators if `is_noisy`."""

    def __init__(self, length: int = 26, is_noisy: bool = False) -> None:
        self.length, self.is_noisy = length, is_noisy

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = torch.rand(4) + np.random.rand() + random.random() if self.is_noisy else 0.0
        return torch.arange(4.0) * index / 100 + noise


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(Rows())  # type: ignore[call-overload]


def layers() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))


def begin(framework: str) -> None:
    """Seed a script. A resumed process has drawn other numbers."""
    if importlib.util.find_spec(framework) is None:
        loud_skip(f"the adapter of {framework}: it is not installed")
    m5ws.seed(1)


def use_trainer(
    data: Any = None, accumulate: int = 1, by_epochs: bool = False, workers: int = 0, attach: int = 1, **more: Any
) -> None:
    begin("transformers")
    from transformers import Trainer, TrainingArguments

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers()

        def forward(self, x: torch.Tensor, labels: Any = None) -> dict[str, torch.Tensor]:
            return {"loss": self.layers(x).pow(2).mean()}

    def collate(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"x": torch.stack(rows)}

    arguments = TrainingArguments(
        "out",
        **({"num_train_epochs": 3} if by_epochs else {"max_steps": _STEPS}),
        per_device_train_batch_size=3,
        gradient_accumulation_steps=accumulate,
        dataloader_num_workers=workers,
        eval_strategy="steps",
        eval_steps=2,
        logging_steps=3,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        **more,
    )
    data = data or Rows()
    trainer = Trainer(Net(), arguments, data_collator=collate, train_dataset=data, eval_dataset=Rows(6, True))
    for _ in range(attach):
        trainer.train(resume_from_checkpoint=m5ws.adapters.transformers(trainer))


def use_lightning(
    data: Any = None, accumulate: int = 1, by_epochs: bool = False, check: Any = 1.0, plateau: bool = False, **more: Any
) -> None:
    begin("lightning")
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.layers(batch).pow(2).mean()

        def validation_step(self, batch: torch.Tensor, index: int) -> None:
            self.log("val", self.layers(batch).mean())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            if plateau:
                schedule: Any = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val"}}
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)]

    net = Net()
    trainer = lightning.Trainer(
        **({"max_epochs": 3} if by_epochs else {"max_steps": _STEPS}),
        accumulate_grad_batches=accumulate,
        val_check_interval=check,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[m5ws.adapters.lightning()],
        **more,
    )
    loader = data if isinstance(data, DataLoader) else DataLoader(data or Rows(), 3, shuffle=data is None)
    trainer.fit(net, loader, DataLoader(Rows(6, True), 3, shuffle=True))


def use_accelerate(data: Any = None, accumulate: int = 1, scheduler: bool = True, **options: Any) -> None:
    begin("accelerate")
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    loader = DataLoader(data or Rows(), 3, **({"shuffle": True} if data is None else {}), **options)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    batches = m5ws.adapters.accelerate(accelerator, model, optimizer, loader, scheduler=schedule, total_steps=_STEPS)
    for batch in batches:
        with accelerator.accumulate(model):
            loss = model(batch).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        batches.record(loss=loss)


def own() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def _cases() -> Iterator[Any]:
    for accumulate, by_epochs in itertools.product((1, 2, 4), (False, True)):
        settings = {"accumulate": accumulate, "by_epochs": by_epochs}
        yield pytest.param(use_trainer, settings, id=f"trainer, {settings}")
        for check in (1.0, 2):
            yield pytest.param(use_lightning, settings | {"check": check}, id=f"lightning, {settings}, {check}")
    for accumulate in (1, 2, 4):
        yield pytest.param(use_accelerate, {"accumulate": accumulate}, id=f"accelerate, {accumulate}")
    yield pytest.param(use_trainer, {"workers": 2}, id="trainer, workers")
    yield pytest.param(use_accelerate, {"num_workers": 2}, id="accelerate, workers")
    yield pytest.param(use_accelerate, {"generator": True}, id="accelerate, generator")
    for options in ({}, {"num_workers": 2}, {"generator": True}):
        yield pytest.param(use_lightning, {"noisy": options}, id=f"lightning, noise, {options}")


def _script(use: Any, settings: dict[str, Any]) -> Any:
    """Return a script; what it consumes is made anew in each attempt."""
    settings = dict(settings)
    noisy = settings.pop("noisy", None)

    def script() -> None:
        fresh = {key: own() if key == "generator" else value for key, value in settings.items()}
        if noisy is not None:
            options = {key: own() if key == "generator" else value for key, value in noisy.items()}
            fresh["data"] = DataLoader(Rows(26, True), 3, shuffle=True, **options)
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
    # Any others in a campaign: `pytest --campaign-seed`.
    draw = random.Random(request.config.getoption("--campaign-seed") or str(settings))
    for event in draw.sample(published, min(_RESUMES, last)):
        torch.rand(event.step)
        again, error = in_process(script, resume=event.checkpoint, checkpoint_at=range(1, 99), fingerprint_at=())
        assert error is None, (event.step, error)
        assert again.steps(0) == {s: value for s, value in whole.steps(0).items() if s > event.step}, event.step
        assert again.states(0) == {s: value for s, value in whole.states(0).items() if s >= event.step}, event.step
        if event.step < last:
            assert again.contents[last] == whole.contents[last], event.step


_REFUSED = {
    "trainer, stream": (use_trainer, {"data": Stream()}, "IterableDataset"),
    "trainer, noise": (use_trainer, {"data": Rows(26, True)}, "draws random numbers"),
    "trainer, ignore_data_skip": (use_trainer, {"ignore_data_skip": True}, "ignore_data_skip"),
    "trainer, two trainings": (use_trainer, {"attach": 2}, "second one"),
    "lightning, stream": (use_lightning, {"data": DataLoader(Stream(), 3)}, "IterableDataset"),
    "lightning, plateau": (use_lightning, {"plateau": True}, "ReduceLROnPlateau"),
    "lightning, reloads": (use_lightning, {"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders"),
    "accelerate, stream": (use_accelerate, {"data": Stream()}, "IterableDataset"),
    "accelerate, noise": (use_accelerate, {"data": Rows(26, True)}, "draws random numbers"),
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


@pytest.mark.parametrize("use", [use_trainer, use_lightning, use_accelerate])
def test_a_resume_with_other_data_is_refused(
    use: Any, in_process: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, error = in_process(use, checkpoint_at=(3,))
    assert error is None
    again, error = in_process(partial(use, data=Rows(25)), resume=whole.of(CheckpointPublished)[0].checkpoint)
    assert isinstance(error, RestoreError) and "another one" in str(error)
    assert again.steps(0) == {}


@pytest.mark.parametrize("use", [use_trainer, use_lightning, use_accelerate])
def test_the_line_does_nothing_outside_a_run(use: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    use()
    assert not list(tmp_path.glob("*.spool"))
