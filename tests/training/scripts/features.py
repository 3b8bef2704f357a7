"""Trainings with one feature each: `FEATURES[NAME](seed)` returns what a session takes, and what does a step.

A new feature is a function here, and a row in test_features.py.
"""

from collections import ChainMap
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from tiny_gpt import GPT, LENGTH, WIDTH, Batches, loss_of
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
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


# --- layouts


@feature
def plain(seed: int) -> Made:
    model = GPT(seed)
    return trainer(model, adamw(model))


@feature
def plain_uneven(seed: int) -> Made:
    model = GPT(seed, width=36, vocabulary=70)
    return trainer(model, adamw(model))


@feature
def plain_4_layers(seed: int) -> Made:
    model = GPT(seed, layers=4)
    return trainer(model, adamw(model))


def _ddp(seed: int, **more: Any) -> Made:
    model = DistributedDataParallel(GPT(seed), **more)
    return trainer(model, adamw(model))


@feature
def ddp_4_layers(seed: int) -> Made:
    model = DistributedDataParallel(GPT(seed, layers=4))
    return trainer(model, adamw(model))


FEATURES |= {
    "ddp": _ddp,
    "ddp_static": lambda seed: _ddp(seed, static_graph=True),
    "ddp_unused": lambda seed: _ddp(seed, find_unused_parameters=True),
    "ddp_views": lambda seed: _ddp(seed, gradient_as_bucket_view=True, bucket_cap_mb=0.01),
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
    composed(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return trainer(model, adamw(model))


@feature
def fsdp(seed: int) -> Made:
    model = shard(GPT(seed))
    return trainer(model, adamw(model))


@feature
def fsdp_columns(seed: int) -> Made:
    model = fully_shard(GPT(seed), shard_placement_fn=lambda p: Shard(1) if p.dim() > 1 else None)
    return trainer(model, adamw(model))


@feature
def hsdp(seed: int) -> Made:
    model = shard(GPT(seed), square())
    return trainer(model, adamw(model))


@feature
def hsdp_parted(seed: int) -> Made:
    """One rank's copy of what two ranks hold is changed: a copy of a shard, which only a comparison of all finds."""
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
    """Of four experts each token has one; they are cut over the ranks, and tokens go to them and back."""

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


@feature
def tp(seed: int) -> Made:
    model = cut(GPT(seed), init_device_mesh("cpu", (dist.get_world_size(),)))
    return trainer(model, adamw(model), rank=0)


@feature
def tp_sequence(seed: int) -> Made:
    model = cut(GPT(seed), init_device_mesh("cpu", (dist.get_world_size(),)), sequence=True)
    return trainer(model, adamw(model), rank=0)


def _tp_fsdp(seed: int, sequence: bool = False, **more: Any) -> Made:
    mesh = square()
    model = shard(cut(GPT(seed, **more), mesh["inner"], sequence), mesh["outer"])
    return trainer(model, adamw(model), rank=mesh["outer"].get_local_rank())


FEATURES |= {
    "tp_fsdp": _tp_fsdp,
    "tp_sequence_fsdp": lambda seed: _tp_fsdp(seed, sequence=True),
    "tp_fsdp_uneven": lambda seed: _tp_fsdp(seed, width=36, vocabulary=70),
    "tp_fsdp_tied": lambda seed: _tp_fsdp(seed, tie=True),
}


def _pipeline(seed: int, sharded: bool = False, renamed: bool = False, uneven: bool = False) -> Made:
    """Two stages of two blocks each; with `renamed`, both have the same names, if `uneven` of other shapes."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("pp", "dp"))
    number, model = mesh["pp"].get_local_rank(), GPT(seed, layers=4)
    kept = ("0", "1") if number == 0 else ("2", "3")
    blocks = {str(at) if renamed else name: model.blocks[name] for at, name in enumerate(kept)}
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
    "pipeline_uneven": lambda seed: _pipeline(seed, renamed=True, uneven=True),
    "pipeline_renamed": lambda seed: _pipeline(seed, renamed=True),
}


# --- memory and precision


@feature
def checkpointed(seed: int) -> Made:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = GPT(seed)
    for name, block in model.blocks.items():
        model.blocks[name] = checkpoint_wrapper(block)
    model = shard(model)
    return trainer(model, adamw(model))


@feature
def checkpointed_selectively(seed: int) -> Made:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        kept = operator is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    model = GPT(seed)
    for name, block in model.blocks.items():
        contexts = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
        model.blocks[name] = checkpoint_wrapper(block, context_fn=contexts)
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


def _delayed(seed: int, whole: bool) -> Made:
    """Made on no device, and sharded, before it has weights: drawn shard by shard, or each whole and then cut."""
    with torch.device("meta"):
        model = GPT(seed)
    model = shard(model)
    model.to_empty(device="cpu")
    torch.manual_seed(seed)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape) * 0.02
        cut_up = distribute_tensor(drawn, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.data.copy_(cut_up) if whole else nn.init.normal_(parameter, std=0.02)
    return trainer(model, adamw(model))


FEATURES |= {"delayed": lambda seed: _delayed(seed, False), "delayed_whole": lambda seed: _delayed(seed, True)}


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
    """A matrix that is not trained, and a small one beside it that is."""

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
def bf16_weights(seed: int) -> Made:
    model = shard(GPT(seed).to(torch.bfloat16))
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
def frozen(seed: int) -> Made:
    model = GPT(seed)
    model.tok.requires_grad_(False)
    model = shard(model)
    return trainer(model, adamw(model))


@feature
def tied(seed: int) -> Made:
    model = shard(GPT(seed, tie=True))
    return trainer(model, adamw(model))


# --- optimizers


@feature
def fused(seed: int) -> Made:
    model = shard(GPT(seed))
    return trainer(model, adamw(model, fused=True))


@feature
def foreach(seed: int) -> Made:
    model = shard(GPT(seed))
    return trainer(model, adamw(model, foreach=True))


@feature
def muon(seed: int) -> Made:
    model = shard(GPT(seed))
    optimizer, _ = _muon_and_adamw(model)
    return trainer(model, optimizer)


@feature
def tensor_lr(seed: int) -> Made:
    model = shard(GPT(seed))
    return trainer(model, torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2), foreach=False))


@feature
def sgd(seed: int) -> Made:
    model = shard(GPT(seed))
    return trainer(model, torch.optim.SGD(model.parameters(), lr=1e-2))


@feature
def adafactor(seed: int) -> Made:
    model = DistributedDataParallel(GPT(seed))
    return trainer(model, torch.optim.Adafactor(model.parameters(), lr=1e-2), clips=False)


def _muon_and_adamw(model: nn.Module) -> Any:
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "blocks" in name]
    known = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in known]
    return torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=1e-2)


@feature
def two_optimizers(seed: int) -> Made:
    model = shard(GPT(seed))
    both = _muon_and_adamw(model)
    parts, step = trainer(model, *both)
    return {**parts, "optimizer": list(both)}, step


class Both(torch.optim.Optimizer):
    """Two optimizers as one, whose state is a view of both."""

    def __init__(self, one: Any, two: Any) -> None:
        self.one, self.two, self.defaults = one, two, {}

    __hash__ = object.__hash__

    @property
    def param_groups(self) -> Any:
        return self.one.param_groups + self.two.param_groups

    @property
    def state(self) -> Any:
        return ChainMap(self.one.state, self.two.state)

    def step(self, closure: Any = None) -> None:
        self.one.step()
        self.two.step()

    def state_dict(self) -> Any:
        return {"one": self.one.state_dict(), "two": self.two.state_dict()}


@feature
def wrapped_optimizers(seed: int) -> Made:
    model = shard(GPT(seed))
    return trainer(model, Both(*_muon_and_adamw(model)))


@feature
def redundancy(seed: int) -> Made:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(GPT(seed))
    return trainer(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2))


class OwnMoments(torch.optim.Optimizer):
    """Momentum as written by hand: in a list of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-2})
        self.moments = [torch.zeros_like(parameter) for parameter in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter, moment in zip(self.param_groups[0]["params"], self.moments, strict=True):
            moment.lerp_(parameter.grad, 0.1)
            parameter.sub_(moment * 1e-2)


@feature
def own_moments(seed: int) -> Made:
    model = GPT(seed)
    return trainer(model, OwnMoments(model.parameters()))


class Shampoo(torch.optim.Optimizer):
    """Kronecker factors of other shapes than the parameter, whole on each rank: in its state, or in containers."""

    def __init__(self, parameters: Any, form: str) -> None:
        super().__init__(parameters, {"lr": 1e-2})
        self.form = form

    def begun(self, parameter: Any) -> Any:
        factors = {"L": torch.eye(parameter.shape[0]), "R": torch.eye(parameter.shape[1])}
        if self.form == "flat":
            return {**factors, "step": 0}
        if self.form == "nested":
            return {"block_0": {"factors": factors, "step": 0}}
        return {"factors": [(factors["L"], factors["R"])], "step": 0}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            grad = parameter.grad
            full = grad.full_tensor() if isinstance(grad, DTensor) else grad
            if parameter.dim() == 2:
                state = self.state[parameter]
                if not state:
                    state |= self.begun(parameter)
                inner = state.get("block_0", state)
                held = inner.get("factors", inner)
                left, right = held[0] if isinstance(held, list) else (held["L"], held["R"])
                inner["step"] += 1
                left.add_(full @ full.T)
                right.add_(full.T @ full)
                full = (full / left.diagonal().sqrt()[:, None] / right.diagonal().sqrt()) / inner["step"]
            if isinstance(parameter, DTensor):
                full = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.add_(full, alpha=-self.param_groups[0]["lr"])


def _shampoo(seed: int, form: str, sharded: bool) -> Made:
    model = shard(GPT(seed)) if sharded else GPT(seed)
    return trainer(model, Shampoo(model.parameters(), form), clips=False)


FEATURES |= {
    "shampoo_flat": lambda seed: _shampoo(seed, "flat", True),
    "shampoo_nested": lambda seed: _shampoo(seed, "nested", True),
    "shampoo_lists": lambda seed: _shampoo(seed, "lists", True),
    "plain_shampoo_nested": lambda seed: _shampoo(seed, "nested", False),
}


class Opaque(torch.Tensor):
    """A tensor without bytes of its own, which nothing takes apart."""

    @staticmethod
    def __new__(cls: Any, codes: torch.Tensor, *_: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes: torch.Tensor, *_: Any) -> None:
        self.codes = codes

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(f"{cls.__name__} dispatch: {function}")


class Packed(Opaque):
    """As torchao's quantized states: codes, a scale for each block of a rank's part, and what they stand for."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, kind: torch.dtype) -> None:
        self.codes, self.scales, self.kind = codes, scales, kind

    def __tensor_flatten__(self) -> Any:
        return ["codes", "scales"], [self.kind]

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["codes"], inner["scales"], *context)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.view.default and tuple(args[1]) == tuple(args[0].shape):
            return cls(args[0].codes, args[0].scales, args[0].kind)  # What DTensor asks of what it is made of.
        return super().__torch_dispatch__(function, types, args, kwargs)

    def values(self) -> torch.Tensor:
        return (self.codes.flatten().view(torch.int8).to(self.kind).view(self.scales.numel(), -1) * self.scales).view(
            self.codes.shape
        )

    @classmethod
    def of(cls, values: torch.Tensor) -> Any:
        blocks = values.reshape(values.shape[0] if values.dim() else 1, -1)
        scales = blocks.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
        return cls((blocks / scales).round().to(torch.int8).view(torch.uint8).view(values.shape), scales, values.dtype)


class Quantized(torch.optim.SGD):
    """Momentum in eight bits, with a scale for each row of a rank's part."""

    form: Any = Packed

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            local = parameter.grad.to_local() if isinstance(parameter, DTensor) else parameter.grad
            state = self.state[parameter]
            held = state.get("momentum")
            held = held.to_local() if isinstance(held, DTensor) else held
            moment = local + (0.9 * held.values() if isinstance(held, Packed) else 0.0)
            (parameter.to_local() if isinstance(parameter, DTensor) else parameter).sub_(moment, alpha=1e-2)
            packed = self.form.of(moment) if self.form is Packed else self.form(moment)
            if isinstance(parameter, DTensor):
                packed = DTensor.from_local(
                    packed,
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
            state["momentum"], state["step"] = packed, state.get("step", 0) + 1


class Hidden(Quantized):
    form = Opaque


def _quantized(seed: int, kind: Any = Quantized) -> Made:
    model = shard(GPT(seed, width=36)) if dist.is_initialized() else GPT(seed, width=36)
    return trainer(model, kind(model.parameters(), lr=1e-2))


FEATURES |= {"quantized": _quantized, "opaque": lambda seed: _quantized(seed, Hidden)}


# --- the script's own objects


class Deaf:
    """Gives a state and takes none."""

    def state_dict(self) -> Any:
        return {"seen": 1}

    def load_state_dict(self, state: Any) -> None:
        raise NotImplementedError("one day")


class Clock(Deaf):
    """Gives another state each time."""

    def __init__(self) -> None:
        self.seen = 0

    def state_dict(self) -> Any:
        self.seen += 1
        return {"seen": self.seen}

    def load_state_dict(self, state: Any) -> None:
        self.seen = 0


def _object(seed: int, item: Any) -> Made:
    model = GPT(seed)
    return trainer(model, adamw(model), state={"own": item})


FEATURES |= {"deaf_object": lambda seed: _object(seed, Deaf()), "clock": lambda seed: _object(seed, Clock())}


# --- loaders


class Elastic(Batches):
    """One global batch of four rows, of which each rank has its part: the position is the same for any number."""

    elastic = True

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        for x, y in super().__iter__():
            yield x.chunk(ranks)[data_rank()], y.chunk(ranks)[data_rank()]


@feature
def elastic(seed: int) -> Made:
    model = GPT(seed)
    model = shard(model) if dist.is_initialized() else model
    loader = Elastic(0)
    parts, step = trainer(model, adamw(model), loader=loader)

    def checked(current: Any) -> dict[str, Any]:
        found = step(current)
        assert loader.at == current.number, "the position in the data is lost"
        return found

    return parts, checked


class Apart(Elastic):
    """One that says it is elastic, and whose position is each rank's own."""

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "rank": data_rank()}


@feature
def elastic_apart(seed: int) -> Made:
    model = shard(GPT(seed))
    return trainer(model, adamw(model), loader=Apart(0))


class Failing(Batches):
    """Says its position for a while, on one rank."""

    def state_dict(self) -> dict[str, Any]:
        if self.at > 1 and data_rank() == 1:
            raise OSError("the index is gone")
        return super().state_dict()


@feature
def failing_loader(seed: int) -> Made:
    model = shard(GPT(seed))
    return trainer(model, adamw(model), loader=Failing(data_rank()))


class Torn(Batches):
    """What accelerate gives: a loader that has a `state_dict` in name only."""

    def state_dict(self) -> dict[str, Any]:
        raise AttributeError("'DataLoaderShard' object has no attribute 'dl_state_dict'")


@feature
def torn_loader(seed: int) -> Made:
    model = GPT(seed)
    return trainer(model, adamw(model), loader=Torn(0))


# --- averages


@feature
def ema_averaged(seed: int) -> Made:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = GPT(seed)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    return trainer(model, adamw(model), state={"ema": ema}, after=lambda: ema.update_parameters(model))


@feature
def ema_sharded(seed: int) -> Made:
    model, ema = shard(GPT(seed)), shard(GPT(seed))

    @torch.no_grad()
    def after() -> None:
        for average, parameter in zip(ema.parameters(), model.parameters(), strict=True):
            average.lerp_(parameter.detach(), 0.1)

    return trainer(model, adamw(model), state={"ema": ema}, after=after)


@feature
def ema_within(seed: int) -> Made:
    """The model and its average as one module."""
    model, ema = shard(GPT(seed)), shard(GPT(seed))
    ema.requires_grad_(False)

    @torch.no_grad()
    def after() -> None:
        for average, parameter in zip(ema.parameters(), model.parameters(), strict=True):
            average.lerp_(parameter.detach(), 0.1)

    parts, step = trainer(model, adamw(model), after=after)
    return {**parts, "model": nn.ModuleDict({"net": model, "ema": ema})}, step


@feature
def second_in_state(seed: int) -> Made:
    model = shard(GPT(seed))
    muon, rest = _muon_and_adamw(model)
    return trainer(model, muon, rest, state={"adamw": rest})
