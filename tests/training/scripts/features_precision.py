"""Features of memory and precision: recomputed activations, masters, frozen and tied parameters, offload."""

from typing import Any

import torch
from features import Made, adamw, feature, shard, trainer
from tiny_gpt import GPT, loss_of
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.nn import functional


@feature
def checkpointed(seed: int) -> Made:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = GPT(seed)
    for name, block in model.blocks.items():
        model.blocks[name] = checkpoint_wrapper(block)
    model = shard(model)
    return trainer(model, adamw(model))


@feature
def activations_offloaded(seed: int) -> Made:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import offload_wrapper

    model = GPT(seed)
    model.blocks["0"] = offload_wrapper(model.blocks["0"])
    model = shard(model)

    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu():
            return loss_of(model(x), y)

    return trainer(model, adamw(model), forward=forward)


@feature
def delayed(seed: int) -> Made:
    """Made on no device, and sharded, before it has weights."""
    with torch.device("meta"):
        model = GPT(seed)
    model = shard(model)
    model.to_empty(device="cpu")
    torch.manual_seed(seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    return trainer(model, adamw(model))


@feature
def compiled(seed: int) -> Made:
    model = GPT(seed)
    for block in model.blocks.values():
        block.compile(backend="eager")
    model = torch.compile(shard(model), backend="eager")
    return trainer(model, adamw(model))


@feature
def bf16_autocast(seed: int) -> Made:
    model = shard(GPT(seed))

    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(model(x), y)

    return trainer(model, adamw(model), forward=forward)


@feature
def masters(seed: int) -> Made:
    """bf16 in the model, and fp32 copies that the optimizer trains."""
    model = shard(GPT(seed).to(torch.bfloat16))
    copies = [nn.Parameter(parameter.detach().float()) for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(copies, lr=1e-2)

    def before(*_: Any) -> None:
        for copy, parameter in zip(copies, model.parameters(), strict=True):
            copy.grad = parameter.grad.float()

    @torch.no_grad()
    def after(*_: Any) -> None:
        for copy, parameter in zip(copies, model.parameters(), strict=True):
            parameter.copy_(copy)

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    return trainer(model, optimizer)


class Adapted(nn.Module):
    """A matrix that is not trained, and a small matrix beside it that is."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(4, base.in_features) * 0.02)
        self.b = nn.Parameter(torch.zeros(base.out_features, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + functional.linear(functional.linear(x, self.a), self.b)


@feature
def adapters(seed: int) -> Made:
    model = GPT(seed).requires_grad_(False)
    for block in model.blocks.values():
        block.attn.wq = Adapted(block.attn.wq)
    model = shard(model)
    return trainer(model, adamw(model))


@feature
def bf16(seed: int) -> Made:
    model = shard(GPT(seed), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    return trainer(model, adamw(model))


@feature
def fp16_scaler(seed: int) -> Made:
    model = shard(GPT(seed))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)

    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            return loss_of(model(x), y)

    return trainer(model, adamw(model), forward=forward, scaler=scaler, state={"scaler": scaler})


@feature
def accumulated(seed: int) -> Made:
    model = shard(GPT(seed))
    return trainer(model, adamw(model), accumulate=3)


@feature
def cpu_offload(seed: int) -> Made:
    model = shard(GPT(seed), offload_policy=CPUOffloadPolicy(pin_memory=False))
    return trainer(model, adamw(model))


@feature
def tied(seed: int) -> Made:
    model = shard(GPT(seed, tie=True))
    return trainer(model, adamw(model))
