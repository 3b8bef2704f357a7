"""Resumes with Lightning's strategies that shard state, on two CPU processes: print whether each is exact.

FSDP and DeepSpeed refuse CPUs. Their checks are replaced here, so that a test without GPUs saves and loads the folders
that they write.
"""

import contextlib
import json
import os
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import deepspeed  # noqa: F401  # before the ranks are forked
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from m5ws.repository.ledger.spool import SpoolWriter, genesis
from m5ws.training.frameworks import lightning_state
from m5ws.training.runtime import context
from tests.support.ranks.orders import orders

warnings.simplefilter("ignore")
lightning_state.install()
import lightning  # noqa: E402
import lightning.pytorch.strategies.deepspeed as of_deepspeed  # noqa: E402
from lightning.pytorch.accelerators import CPUAccelerator  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy  # noqa: E402
from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

_RANKS = 2
CASES: dict[str, Any] = {
    "fsdp2, a folder": lambda: ModelParallelStrategy(2, 1),
    "fsdp2, a file": lambda: ModelParallelStrategy(2, 1, save_distributed_checkpoint=False),
    "fsdp, a folder": lambda: FSDPStrategy(state_dict_type="sharded"),
    "deepspeed": lambda: DeepSpeedStrategy(stage=2, process_group_backend="gloo"),
}


def allow_cpus() -> None:
    """Let FSDP and DeepSpeed train on CPUs."""
    _AcceleratorConnector._check_strategy_and_fallback = lambda self: None
    wrap = FullyShardedDataParallel.__init__

    def on_cpu(self: Any, *args: Any, **settings: Any) -> None:
        wrap(self, *args, **settings | {"device_id": torch.device("cpu")})

    FullyShardedDataParallel.__init__ = on_cpu  # type: ignore[method-assign]
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # Or DeepSpeed would compile an operator.
    of_deepspeed.CUDAAccelerator = CPUAccelerator
    of_deepspeed._validate_device_index_selection = lambda devices: None
    DeepSpeedStrategy.root_device = property(lambda self: torch.device("cpu", self.local_rank))


class Net(lightning.LightningModule):
    def __init__(self, case: str) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        self.is_sharded = not case.startswith("fsdp2")

    def configure_model(self) -> None:
        if not self.is_sharded:
            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])
            self.layers.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor.
            self.is_sharded = True

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = self.layers(batch).pow(2).mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def fit(folder: Path, case: str, path: Path | None = None) -> list[float]:
    """Train, from a checkpoint if there is one, and return the losses of this process."""
    torch.manual_seed(1)
    net = Net(case)
    trainer = lightning.Trainer(
        max_steps=9,
        accelerator="cpu",
        devices=_RANKS,
        strategy=CASES[case](),
        logger=False,
        callbacks=[ModelCheckpoint(folder, save_top_k=-1, every_n_train_steps=4, filename="{step}")],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if path is not None:
        torch.rand(7)  # A resumed process has drawn other numbers.
    trainer.fit(net, DataLoader(torch.arange(192.0).view(48, 4) / 100, 4, shuffle=True), ckpt_path=path)
    return net.losses


class NoStop:
    deferred = contextlib.nullcontext


def be_rank(rank: int, port: int, directory: Path) -> None:
    os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(_RANKS))
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # As in a launch by torchrun.
    os.environ |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "forked"}
    spool = SpoolWriter(directory / f"{rank}.spool", genesis("0" * 12, 1, str(rank)))
    context.activate(context.ActiveRank(orders(directory), None, spool, NoStop(), rank, _RANKS))
    allow_cpus()
    for case in CASES:
        whole = fit(directory / case, case)
        lightning_state._own_saves.clear()
        resumed = fit(directory / "resumed", case, directory / case / "step=4.ckpt")
        equal: list[Any] = [None] * _RANKS
        dist.all_gather_object(equal, whole[4:] == resumed)
        if rank == 0:
            kind = "folder" if (directory / case / "step=4.ckpt").is_dir() else "file"
            print(json.dumps({"case": case, "kind": kind, "steps": len(resumed), "exact": all(equal)}), flush=True)


with socket.create_server(("127.0.0.1", 0)) as listener:
    free = listener.getsockname()[1]
children = []
for number in range(_RANKS):
    if (child := os.fork()) == 0:
        status = 1
        try:
            be_rank(number, free, Path(sys.argv[1]))
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
