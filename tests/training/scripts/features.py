"""The registry of trainings with one feature each, and the parts that they share.

`FEATURES[NAME](seed)` returns the arguments of a session, and a function that does a step. A new feature is a function
in one of the modules features_*.py, and a row in test_features.py.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tiny_gpt import Batches, loss_of
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

Made = tuple[dict[str, Any], Callable[[Any], dict[str, Any]]]
FEATURES: dict[str, Callable[[int], Made]] = {}


def feature(made: Callable[[int], Made]) -> Any:
    FEATURES[made.__name__] = made
    return made


def data_rank() -> Any:
    return dist.get_rank() if dist.is_initialized() else 0


def clip(parameters: Any) -> Any:
    """Clip gradients that lie on several meshes, whose norms torch's own does not stack."""
    meshes = {}
    for parameter in parameters:
        if parameter.grad is not None:
            mesh = parameter.grad.device_mesh if isinstance(parameter.grad, DTensor) else None
            meshes.setdefault(mesh, []).append(parameter)
    norms = [get_total_norm([parameter.grad for parameter in own]) for own in meshes.values()]
    whole = torch.stack([norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms])
    total = whole.square().sum().sqrt()
    for own in meshes.values():
        clip_grads_with_norm_(own, 1.0, total)
    return total


def trainer(
    model: nn.Module,
    *optimizers: Any,
    rank: int | None = None,
    clips: Any = True,
    accumulate: Any = 1,
    forward: Any = None,
    scaler: Any = None,
    after: Any = None,
    **more: Any,
) -> Made:
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizers[0], 1000)
    forward = forward or (lambda x, y: loss_of(model(x), y))

    def step(current: Any) -> dict[str, Any]:
        total = 0.0
        for number in range(accumulate):
            if accumulate > 1:
                model.set_requires_gradient_sync(number == accumulate - 1)
            loss = forward(*current.next_batch()) / accumulate
            (scaler.scale(loss) if scaler else loss).backward()
            total = total + loss.detach()
        if scaler:
            scaler.unscale_(optimizers[0])
        norm = clip(model.parameters()) if clips else 0.0
        for optimizer in optimizers:
            scaler.step(optimizer) if scaler else optimizer.step()
        if scaler:
            scaler.update()
        scheduler.step()
        model.zero_grad()
        if after:
            after()
        return {"loss": total, "grad_norm": norm, "lr": scheduler.get_last_lr()[0]}

    loader = Batches(data_rank() if rank is None else rank)
    parts = {"model": model, "optimizer": optimizers[0], "scheduler": scheduler, "loader": loader, **more}
    return parts, step


def adamw(model: nn.Module, **more: Any) -> Any:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1, **more)


def shard(model: nn.Module, mesh: DeviceMesh | None = None, **more: Any) -> Any:
    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh, **more)
    return fully_shard(model, mesh=mesh, **more)


def cut(model: nn.Module, mesh: DeviceMesh, sequence: bool = False) -> Any:
    """Tensor parallelism, and with `sequence` norms that work on a part of the sequence each."""
    tok = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    whole = ColwiseParallel(input_layouts=Shard(1) if sequence else None, output_layouts=Replicate())
    parallelize_module(model, mesh, {"tok": tok, "head": whole, **({"norm": SequenceParallel()} if sequence else {})})
    layers = dict.fromkeys(("attn.wq", "attn.wk", "attn.wv", "mlp.w1"), ColwiseParallel)
    rows = RowwiseParallel(output_layouts=Shard(1) if sequence else Replicate())
    plan = {name: kind() for name, kind in layers.items()} | {"attn.wo": rows, "mlp.w2": rows}
    if sequence:
        gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        plan |= {"n1": SequenceParallel(), "n2": SequenceParallel(), "attn": gathered, "mlp": gathered}
    for block in model.blocks.values():
        parallelize_module(block, mesh, plan)
    if sequence:
        begin = PrepareModuleInput(
            input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=True
        )
        parallelize_module(model.blocks["0"], mesh, begin)
    return model


def square() -> Any:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
