"""A tiny ZeRO training that is hard to resume: dropout, a schedule, sizes that no rank divides, a frozen part."""

import functools
import logging
import os
import sys
from typing import Any

import cpuinfo
import deepspeed
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam

import m5ws

# Each optimizer computes it again, in more than a second.
cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)
logging.getLogger("DeepSpeed").setLevel(logging.ERROR)


class Model(torch.nn.Module):
    """Parameters of 1 to 91 elements; `frozen` is not trained, `seen` differs from rank to rank."""

    seen: torch.Tensor
    passing: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(7, 13)
        self.drop = torch.nn.Dropout(0.2)
        self.frozen = torch.nn.Linear(13, 13, bias=False)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.last = torch.nn.Linear(13, 5)
        self.frozen.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("passing", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.detach().float().sum()
        self.passing += 1
        hidden = self.frozen(torch.tanh(self.first(x.to(self.scale.dtype))))
        out: torch.Tensor = self.last(self.drop(hidden) * self.scale)
        return out.float().square().mean()


def config(stage: int, dtype: str, offload: bool = True, **zero: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"stage": stage, "reduce_bucket_size": 64, "allgather_bucket_size": 64, **zero}
    if stage == 3:
        settings |= {"stage3_param_persistence_threshold": 10}
    if offload and stage:
        settings |= {"offload_optimizer": {"device": "cpu", "pin_memory": False}}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 1.0,
        "steps_per_print": 10**9,
        "zero_optimization": settings,
        "zero_allow_untested_optimizer": True,
        **({"bf16": {"enabled": True}} if dtype == "bf16" else {}),
    }


def engine_of(
    settings: dict[str, Any],
    model: torch.nn.Module,
    torch_adam: bool = False,
    one_group: bool = False,
    betas: tuple[float, float] = (0.9, 0.999),
) -> Any:
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in trained.items() if one_group or "bias" not in name]},
        {"params": [p for name, p in trained.items() if not one_group and "bias" in name], "weight_decay": 0.0},
    ]
    kind = torch.optim.AdamW if torch_adam else DeepSpeedCPUAdam
    optimizer = kind(groups, lr=1e-2, weight_decay=0.1, betas=betas)
    return deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config=settings,
        lr_scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step / 10)),
    )[0]


def train_step(engine: Any, x: torch.Tensor) -> dict[str, Any]:
    loss = engine(x)
    engine.backward(loss)
    engine.step()
    return {"loss": loss.detach(), "grad_norm": float(engine.get_global_grad_norm() or 0), "lr": engine.get_lr()[0]}


class Loader:
    """Batches that are a function of rank and position."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.given = 0

    def __iter__(self) -> Any:
        while True:
            self.given += 1
            yield batch(self.rank, self.given)

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


def batch(rank: int, number: int) -> torch.Tensor:
    return torch.randn(4, 7, generator=torch.Generator().manual_seed(1000 * rank + number))


def main(stage: int, dtype: str, steps: int) -> None:
    deepspeed.init_distributed("gloo", verbose=False)
    rank = torch.distributed.get_rank()
    seed = m5ws.seed(7)
    engine = engine_of(config(stage, dtype), Model())
    torch.manual_seed(seed * 1000 + rank)
    session = m5ws.session(engine=engine, loader=Loader(rank), total_steps=steps, checkpoint_every=1)
    wanted = os.environ.get("TINY_KILL", "").split(":")
    for step in session.steps():
        if wanted[:2] == [str(rank), str(step.number)]:
            os.kill(os.getpid(), int(wanted[2]))
        step.record(**train_step(engine, step.next_batch()), tokens=4)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
