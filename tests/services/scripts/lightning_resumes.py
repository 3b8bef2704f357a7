"""Resumes of Lightning's Trainer in one process: print each case, with the steps from which a resume is not exact."""

import contextlib
import json
import os
import random
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from m5ws.repository.ledger.spool import SpoolWriter, genesis
from m5ws.training.frameworks import lightning_state
from m5ws.training.runtime import context
from tests.support.ranks.orders import orders

warnings.simplefilter("ignore")
lightning_state.install()
import lightning  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402


class Noisy(Dataset):
    """Rows with noise from all global generators."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.arange(4.0) * index / 100 + torch.rand(4) + np.random.rand() + random.random()


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.arange(4.0) * index / 100 for index in torch.randperm(24))


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return sum(self.layers(part).pow(2).mean() for part in (batch if isinstance(batch, list) else [batch]))

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("val", self.layers(batch).mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)]


def noisy(**options: Any) -> DataLoader:
    return DataLoader(Noisy(), 8, shuffle=True, **options)


def plain(**options: Any) -> DataLoader:
    return DataLoader(torch.arange(192.0).view(48, 4) / 100, 8, shuffle=True, **options)


FOLDER = "checkpoints"
STEPS, EPOCHS = {"max_steps": 15}, {"max_epochs": 3}
EACH_SECOND_EPOCH = {"every_n_epochs": 2}
EVERY_4, EVERY_6, EACH_EPOCH = ({"every_n_train_steps": 4}, {"every_n_train_steps": 6}, {"every_n_epochs": 1})
WORKERS = {"num_workers": 2}
PERSISTENT = {"num_workers": 1, "persistent_workers": True}
CASES: dict[str, Any] = {
    "mid-epoch": lambda: (STEPS, EVERY_4, noisy(), None),
    "generator of the loader": lambda: (STEPS, EVERY_4, noisy(generator=torch.Generator().manual_seed(3)), None),
    "end of epoch": lambda: (EPOCHS, EACH_EPOCH, noisy(), None),
    "end of epoch, validation": lambda: (EPOCHS, EACH_EPOCH, noisy(), noisy()),
    "end of epoch, number of steps": lambda: (STEPS, EACH_EPOCH, noisy(), None),
    "end of epoch, number of steps, validation": lambda: (STEPS, EACH_EPOCH, noisy(), noisy()),
    "end of every second epoch": lambda: (STEPS, EACH_SECOND_EPOCH, noisy(), noisy()),
    "end of epoch, persistent workers": lambda: (STEPS, EACH_EPOCH, plain(**PERSISTENT), plain()),
    "validation in mid-epoch": lambda: (EPOCHS | {"val_check_interval": 4}, {}, noisy(), noisy()),
    "last batch": lambda: (STEPS, EVERY_6, noisy(), None),
    "last batch, validation": lambda: (STEPS, EVERY_6, noisy(), noisy()),
    "accumulation": lambda: (STEPS | {"accumulate_grad_batches": 2}, EVERY_4, noisy(), None),
    "accumulation over an epoch": lambda: (STEPS | {"accumulate_grad_batches": 5}, EVERY_4, noisy(), None),
    "workers": lambda: (STEPS, EVERY_4, noisy(**WORKERS), None),
    "persistent workers": lambda: (STEPS, EVERY_4, plain(**PERSISTENT), None),
    "persistent workers, noise": lambda: (STEPS, EVERY_4, noisy(**PERSISTENT), None),
    "stream": lambda: (STEPS, EVERY_4, DataLoader(Stream(), 4), None),
    "two loaders": lambda: (STEPS, EVERY_4, [plain(), plain()], None),
    "same process": lambda: (STEPS, EVERY_4, noisy(), None),
}


def fit(case: str, path: Path | None = None) -> list[torch.Tensor]:
    """Train, from a checkpoint if there is one, and return the tensors of model and optimizer, and counts."""
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(1)
    settings, intervals, train, validation = CASES[case]()
    net = Net()
    trainer = lightning.Trainer(
        **settings,
        accelerator="cpu",
        devices=1,
        logger=False,
        callbacks=[ModelCheckpoint(FOLDER, save_top_k=-1, **intervals)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if path is not None:
        torch.rand(7)  # A resumed process has drawn other numbers.
    trainer.fit(net, train, validation, ckpt_path=path)
    moments = [value for state in trainer.optimizers[0].state.values() for value in state.values()]
    loop = trainer.fit_loop
    counts = [trainer.current_epoch, loop.epoch_progress.current.processed, loop.epoch_loop._batches_that_stepped]
    lr = torch.tensor(trainer.optimizers[0].param_groups[0]["lr"])
    # Lightning ends no epoch if the checkpoint leaves nothing to train.
    is_trained = path is None or torch.load(path)["global_step"] < trainer.global_step
    known = [torch.tensor(counts)] if is_trained else []
    return [*net.state_dict().values(), *moments, torch.get_rng_state(), lr, *known]


def inexact(folder: Path, case: str) -> list[int]:
    """Return the steps of the checkpoints from which a resume does not give the bits of uninterrupted training.

    A resume does not save its checkpoint again.
    """
    place = enter(folder / case / "whole")
    whole = fit(case)
    steps = []
    for path in sorted((place / FOLDER).glob("*.ckpt")):
        torch.load(path, weights_only=True)
        if case != "same process":
            lightning_state._own_saves.clear()
        copy = enter(folder / case / path.stem) / FOLDER / path.name
        shutil.copy(path, copy)
        resumed = fit(case, copy.relative_to(Path.cwd()))
        saved_again = [*copy.parent.glob(f"{path.stem}-v*")] or copy.read_bytes() != path.read_bytes()
        if saved_again or not all(map(torch.equal, whole, resumed)):
            steps.append(int(path.stem.rpartition("=")[2]))
    return sorted(steps)


def enter(folder: Path) -> Path:
    """Make a work directory, and make it the current one."""
    (folder / FOLDER).mkdir(parents=True)
    os.chdir(folder)
    return folder


class NoStop:
    deferred = contextlib.nullcontext


directory = Path(sys.argv[1]).resolve()
spool = SpoolWriter(directory / "0.spool", genesis("0" * 12, 1, "0"))
context.activate(context.ActiveRank(orders(directory), None, spool, NoStop(), 0, 1))
for case in CASES:
    print(json.dumps({"case": case, "inexact": inexact(directory, case)}), flush=True)
