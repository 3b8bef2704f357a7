"""Features that lay out a model over ranks: data, tensor, sequence, expert and pipeline parallelism."""

from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from features import FEATURES, Made, adamw, cut, feature, shard, square, trainer
from tiny_gpt import GPT, LENGTH, WIDTH, Batches, loss_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def _of(model: nn.Module, **more: Any) -> Made:
    return trainer(model, adamw(model), **more)


def _ddp(seed: int, layers: int = 2, **more: Any) -> Made:
    return _of(DistributedDataParallel(GPT(seed, layers=layers), **more))


def _line() -> Any:
    return init_device_mesh("cpu", (dist.get_world_size(),))


FEATURES |= {
    "plain": lambda seed: _of(GPT(seed)),
    "plain_uneven": lambda seed: _of(GPT(seed, width=36, vocabulary=70)),
    "plain_4_layers": lambda seed: _of(GPT(seed, layers=4)),
    "ddp": _ddp,
    "ddp_4_layers": lambda seed: _ddp(seed, layers=4),
    "ddp_unused": lambda seed: _ddp(seed, find_unused_parameters=True),
    "fsdp": lambda seed: _of(shard(GPT(seed))),
    "hsdp": lambda seed: _of(shard(GPT(seed), square())),
    "tp": lambda seed: _of(cut(GPT(seed), _line()), rank=0),
}


@feature
def ddp_hook(seed: int) -> Made:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = DistributedDataParallel(GPT(seed))
    model.register_comm_hook(None, fp16_compress_hook)
    return trainer(model, adamw(model))


@feature
def replicate(seed: int) -> Made:
    from torch.distributed._composable.replicate_with_fsdp import replicate as composed

    model = GPT(seed)
    composed(model, mesh=_line())
    return trainer(model, adamw(model))


@feature
def fsdp_columns(seed: int) -> Made:
    model = fully_shard(GPT(seed), shard_placement_fn=lambda p: Shard(1) if p.dim() > 1 else None)
    return trainer(model, adamw(model))


@feature
def growing_buffer(seed: int) -> Made:
    """The first forward pass makes a buffer of another shape, as for a longer sequence."""
    model = GPT(seed)
    model.register_buffer("cache", torch.zeros(2), persistent=False)

    def forward(x: Any, y: Any) -> Any:
        model.cache = torch.zeros(3)
        return loss_of(model(x), y)

    return trainer(model, adamw(model), forward=forward)


@feature
def experts_alike(seed: int) -> Made:
    """Each rank trains an expert of its own over a mesh of its own, and all have the same names."""
    meshes = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("experts", "data"))
    model = shard(GPT(seed + dist.get_rank()), meshes["data"])

    def forward(x: Any, y: Any) -> Any:
        raise RuntimeError("a step began")

    return trainer(model, adamw(model), forward=forward)


@feature
def hsdp_parted(seed: int) -> Made:
    """One rank's copy of a shard is changed: only a comparison of all copies detects it."""
    model = shard(GPT(seed), square())

    def after() -> None:
        if dist.get_rank() == 3:
            model.head.weight.to_local().data[0, 0] += 1e-3

    return trainer(model, adamw(model), after=after)


@feature
def hsdp_tp(seed: int) -> Made:
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("copies", "shards", "inner"))
    model = shard(cut(GPT(seed), mesh["inner"]), mesh["copies", "shards"])
    return trainer(model, adamw(model), rank=mesh["copies"].get_local_rank())


@feature
def context_parallel(seed: int) -> Made:
    """Each rank has a part of the sequence, and all keys and values."""
    from torch.distributed.nn.functional import all_gather

    model, rank, part = GPT(seed), dist.get_rank(), LENGTH // dist.get_world_size()
    own = slice(rank * part, (rank + 1) * part)
    mask = torch.ones(LENGTH, LENGTH).tril().bool()[own]

    def attend(attn: Any, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = (w(x).view(b, t, -1, attn.width).transpose(1, 2) for w in (attn.wq, attn.wk, attn.wv))
        k, v = (torch.cat(all_gather(each.contiguous()), dim=2) for each in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return attn.wo(mixed.transpose(1, 2).reshape(b, t, -1))

    for block in model.blocks.values():
        block.attn.forward = MethodType(attend, block.attn)
    model = shard(model)
    forward = lambda x, y: loss_of(model(x[:, own]), y[:, own])  # noqa: E731
    return trainer(model, adamw(model), rank=0, forward=forward)


class Experts(nn.Module):
    """Each token uses one of four experts, which are sharded over the ranks; tokens are sent to them and back."""

    def __init__(self, group: Any = None) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4, bias=False)
        self.w1, self.w2 = (nn.Parameter(torch.empty(4, *shape)) for shape in ((WIDTH, 8), (8, WIDTH)))
        self.group = group

    def swapped(self, x: torch.Tensor, ranks: int) -> torch.Tensor:
        from torch.distributed.nn.functional import all_to_all_single

        return all_to_all_single(torch.empty_like(x), x.contiguous(), group=self.group) if ranks > 1 else x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape, x = x.shape, x.reshape(-1, WIDTH)
        weights, chosen = self.router(x).softmax(-1).max(-1)
        sent = x * functional.one_hot(chosen, 4).T[..., None]
        w1, w2 = (w.to_local() if isinstance(w, DTensor) else w for w in (self.w1, self.w2))
        own, ranks = w1.shape[0], 4 // w1.shape[0]
        there = self.swapped(sent, ranks).view(ranks, own, -1, WIDTH).transpose(0, 1).reshape(own, -1, WIDTH)
        done = torch.bmm(functional.gelu(torch.bmm(there, w1)), w2)
        back = done.view(own, ranks, -1, WIDTH).transpose(0, 1).reshape(4, -1, WIDTH)
        return (self.swapped(back, ranks).sum(0) * weights[:, None]).view(shape)


def _experts(seed: int, sharded: bool) -> Made:
    model = GPT(seed)
    for block in model.blocks.values():
        block.mlp = Experts(dist.group.WORLD if sharded else None)
        for parameter in (block.mlp.w1, block.mlp.w2):
            nn.init.normal_(parameter, std=0.1)
    if sharded:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks.values():
            for name in ("w1", "w2"):
                setattr(
                    block.mlp, name, nn.Parameter(distribute_tensor(getattr(block.mlp, name).data, mesh, [Shard(0)]))
                )
        ignored = {each for block in model.blocks.values() for each in (block.mlp.w1, block.mlp.w2)}
        model = fully_shard(model, mesh=mesh, ignored_params=ignored)
    return trainer(model, adamw(model), clips=False)


FEATURES |= {"experts": lambda seed: _experts(seed, True), "plain_experts": lambda seed: _experts(seed, False)}


def _tp_fsdp(seed: int, sequence: bool = False, **more: Any) -> Made:
    mesh = square()
    model = shard(cut(GPT(seed, **more), mesh["inner"], sequence), mesh["outer"])
    return trainer(model, adamw(model), rank=mesh["outer"].get_local_rank())


FEATURES |= {
    "tp_fsdp": _tp_fsdp,
    "tp_sequence_fsdp": lambda seed: _tp_fsdp(seed, sequence=True),
    "tp_fsdp_uneven": lambda seed: _tp_fsdp(seed, width=36, vocabulary=70),
}


def _pipeline(seed: int, sharded: bool = False, uneven: bool = False) -> Made:
    """Two stages of two blocks each; with `uneven`, both have the same names and other shapes."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("pp", "dp"))
    number, model = mesh["pp"].get_local_rank(), GPT(seed, layers=4)
    kept = ("0", "1") if number == 0 else ("2", "3")
    blocks = {str(at) if uneven else name: model.blocks[name] for at, name in enumerate(kept)}
    model.blocks = nn.ModuleDict(blocks)
    if number == 0:
        model.norm = model.head = None
    else:
        model.tok = model.pos = None
    if uneven and number:
        model.blocks["0"].mlp.w1, model.blocks["0"].mlp.w2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    if sharded:
        shard(model, mesh["dp"])
    stage = PipelineStage(model, number, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_of)
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)

    def step(current: Any) -> dict[str, Any]:
        x, y = current.next_batch()
        losses = []
        schedule.step(x) if number == 0 else schedule.step(target=y, losses=losses)
        loss = torch.stack([each.detach() for each in losses]).mean() if losses else torch.zeros(())
        dist.broadcast(loss, group_src=1, group=mesh.get_group("pp"))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return {"loss": loss}

    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "loader": Batches(mesh["dp"].get_local_rank()),
    }, step


FEATURES |= {
    "pipeline": _pipeline,
    "pipeline_fsdp": lambda seed: _pipeline(seed, sharded=True),
    "pipeline_uneven": lambda seed: _pipeline(seed, uneven=True),
}
