"""Train a GPT with FSDP2 on the processes that started this script.

    m5ws run                                                     pinned, isolated, recorded
    torchrun --standalone --nproc-per-node 2 train.py            the same training, without m5ws around it

m5ws needs only the lines with `m5ws.` and `step.` in them.
"""

import math
import os
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from data import Batches, load_tokens
from model import GPT
from ruamel.yaml import YAML
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import m5ws

here = Path(__file__).parent
cfg = SimpleNamespace(**YAML(typ="safe").load(here / "config.yaml"))

# -- Processes and devices: a GPU for each process, or the CPU for all of them.
local_rank, local_world = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
on_gpu = torch.cuda.device_count() >= local_world
device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
rank, world = dist.get_rank(), dist.get_world_size()

# -- Data.
seed = m5ws.seed(cfg.seed)
tokens, vocabulary = load_tokens(here / "data" / "corpus.txt", here / "tokenizer" / "tokenizer.json")
batches = Batches(tokens, cfg.length, cfg.batch_size, seed=seed, rank=rank, world=world)

# -- Model: the same on every process before it is sharded, block by block, then the rest.
model = GPT(vocabulary, cfg.length, cfg.layers, cfg.heads, cfg.width, cfg.dropout).to(device)
precision = MixedPrecisionPolicy(param_dtype=getattr(torch, cfg.dtype), reduce_dtype=torch.float32)
mesh = dist.device_mesh.init_device_mesh(device.type, (world,))
for block in model.blocks:
    fully_shard(block, mesh=mesh, mp_policy=precision)
fully_shard(model, mesh=mesh, mp_policy=precision)

# -- Optimizer: weight decay for matrices only; a warm-up, then half a cosine.
matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
groups = [{"params": matrices, "weight_decay": cfg.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=cfg.learning_rate, betas=(0.9, 0.95))


def schedule(done: int) -> float:
    """Return the factor of the learning rate after `done` steps."""
    if done < cfg.warmup_steps:
        return (done + 1) / cfg.warmup_steps
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (done - cfg.warmup_steps) / max(1, cfg.steps - cfg.warmup_steps)))


scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
torch.manual_seed(seed + rank)  # From here on each process draws its own numbers, for dropout.

# -- The loop.
session = m5ws.session(
    model, optimizer, scheduler=scheduler, loader=batches, total_steps=cfg.steps, checkpoint_every=cfg.checkpoint_every
)
for step in session.steps():
    x, y = (part.to(device) for part in step.next_batch())
    lr = scheduler.get_last_lr()[0]
    loss = model(x, y)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.gradient_clip).full_tensor()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    step.record(loss=loss, grad_norm=norm, lr=lr, tokens=x.numel())
    if rank == 0 and step.number % cfg.log_every == 0:
        print(f"step {step.number}/{cfg.steps}  loss {loss.item():.4f}  gradient {norm.item():.3f}  lr {lr:.2e}")

dist.destroy_process_group()
