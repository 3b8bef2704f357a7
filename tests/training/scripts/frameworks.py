"""Trainings with the line of an adapter: Hugging Face's Trainer, Lightning and Accelerate."""

import importlib.util
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import m5ws
from m5ws.data import Loader, Source
from tests.conftest import loud_skip
from tests.datasets import written

STEPS = 11


class Rows(Dataset[Any]):
    """Rows, with noise from all global generators if `is_noisy`."""

    def __init__(self, length: int = 26, is_noisy: bool = False) -> None:
        self.length, self.is_noisy = length, is_noisy

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = torch.rand(4) + np.random.rand() + random.random() if self.is_noisy else 0.0
        return torch.arange(4.0) * index / 100 + noise


def make_loader(batch_size: int = 3, workers: int = 0, rows: int = 26) -> Loader:
    """Return a loader of m5ws.data, of rows in the present folder."""
    folder = Path("web")
    if not folder.exists():
        table = [[{"x": [row / 100 + column for column in range(4)]} for row in range(rows)]]
        written.write_jsonl(folder, [table[0][:10], table[0][10:]])
    source = Source(dataset=written.Folder(folder))
    return Loader(source, batch_size=batch_size, workers=workers, collate=_collate)


def _collate(rows: list[Any]) -> dict[str, torch.Tensor]:
    return {"x": torch.tensor([row["x"] for row in rows])}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(Rows())


def layers() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))


def begin(framework: str) -> None:
    """Seed a script. A resumed process has drawn other numbers."""
    if importlib.util.find_spec(framework) is None:
        loud_skip(f"the adapter of {framework}: it is not installed")
    m5ws.seed(1)


def use_trainer(
    data: Any = None,
    accumulate: int = 1,
    by_epochs: bool = False,
    workers: int = 0,
    attach: int = 1,
    loader: Loader | None = None,
    **more: Any,
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
        **({"num_train_epochs": 3} if by_epochs else {"max_steps": STEPS}),
        per_device_train_batch_size=3,
        gradient_accumulation_steps=accumulate,
        dataloader_num_workers=workers,
        eval_strategy="steps",
        eval_steps=2,
        logging_steps=3,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        **({"save_strategy": "no"} | more),
    )
    data = data or Rows()
    trainer = Trainer(Net(), arguments, data_collator=collate, train_dataset=data, eval_dataset=Rows(6, True))
    if loader is not None:
        trainer.get_train_dataloader = loader.dataloader
    for _ in range(attach):
        trainer.train(resume_from_checkpoint=m5ws.adapters.transformers(trainer))


def use_lightning(
    data: Any = None,
    accumulate: int = 1,
    by_epochs: bool = False,
    check: Any = 1.0,
    plateau: bool = False,
    loader: Loader | None = None,
    **more: Any,
) -> None:
    begin("lightning")
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.layers(batch["x"] if isinstance(batch, dict) else batch).pow(2).mean()

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
        **({"max_epochs": 3} if by_epochs else {"max_steps": STEPS}),
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
    if loader is not None:
        data = loader.dataloader()
    batches = data if isinstance(data, DataLoader) else DataLoader(data or Rows(), 3, shuffle=data is None)
    trainer.fit(net, batches, DataLoader(Rows(6, True), 3, shuffle=True))


def use_session(loader: Loader, form: str) -> None:
    """Train with a session, whose loader is a loader of m5ws.data in another form."""
    begin("datasets" if form == "iterable_dataset" else "torch")
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    session = m5ws.session(model, optimizer, loader=getattr(loader, form)(), total_steps=STEPS, checkpoint_every=1)
    for step in session.steps():
        loss = model(step.next_batch()["x"]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step.record(loss=loss, lr=0.01)


def use_accelerate(data: Any = None, accumulate: int = 1, scheduler: bool = True, **options: Any) -> None:
    begin("accelerate")
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    loader = DataLoader(data or Rows(), 3, **({"shuffle": True} if data is None else {}), **options)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    batches = m5ws.adapters.accelerate(accelerator, model, optimizer, loader, scheduler=schedule, total_steps=STEPS)
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
