"""A Lightning module with dropout and a shuffled loader, in mid-epoch when it saves, on two processes with DDP."""

from pathlib import Path

import lightning
import torch
import yaml
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch.utils.data import DataLoader, TensorDataset

import m5ws


class Net(lightning.LightningModule):
    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        )

    def training_step(self, batch: list, index: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list, index: int) -> None:
        self.log("val_loss", torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


config = yaml.safe_load(Path("config.yaml").read_text())
lightning.seed_everything(1)
inputs = torch.randn(96, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
net = Net(config["learning_rate"])
trainer = lightning.Trainer(
    max_steps=config["steps"],
    default_root_dir="out",
    log_every_n_steps=2,
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    enable_progress_bar=False,
    logger=[CSVLogger("out"), TensorBoardLogger("out")],
    callbacks=[
        ModelCheckpoint("out/checkpoints", every_n_train_steps=4, save_top_k=-1, enable_version_counter=False),
        LearningRateMonitor(),
        m5ws.adapters.lightning(),
    ],
)
trainer.fit(net, DataLoader(data, 8, shuffle=True), DataLoader(data, 16))
