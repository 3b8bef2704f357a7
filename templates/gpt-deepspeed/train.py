"""Train a GPT with DeepSpeed ZeRO on the processes that started this script; the optimizer runs on the CPU.

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

import m5ws

# -- Processes and devices: a GPU for each process, or the CPU for all of them; DeepSpeed reads this at its import.
local_rank, local_world = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
on_gpu = torch.cuda.device_count() >= local_world
os.environ["DS_ACCELERATOR"] = "cuda" if on_gpu else "cpu"
import deepspeed  # noqa: E402
from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: E402

here = Path(__file__).parent
cfg = SimpleNamespace(**YAML(typ="safe").load(here / "config.yaml"))
if on_gpu:
    torch.cuda.set_device(local_rank)
deepspeed.init_distributed(dist_backend="nccl" if on_gpu else "gloo", verbose=False)
rank, world = dist.get_rank(), dist.get_world_size()

# -- Data.
seed = m5ws.seed(cfg.seed)
tokens, vocabulary = load_tokens(here / "data" / "corpus.txt", here / "tokenizer" / "tokenizer.json")
batches = Batches(tokens, cfg.length, cfg.batch_size, seed=seed, rank=rank, world=world)

# -- Model and optimizer: weight decay for matrices only; a warm-up, then half a cosine.
model = GPT(vocabulary, cfg.length, cfg.layers, cfg.heads, cfg.width, cfg.dropout)
matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
groups = [{"params": matrices, "weight_decay": cfg.weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def schedule(done: int) -> float:
    """Return the factor of the learning rate after `done` steps."""
    if done < cfg.warmup_steps:
        return (done + 1) / cfg.warmup_steps
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (done - cfg.warmup_steps) / max(1, cfg.steps - cfg.warmup_steps)))


# -- ZeRO: stage 2 shards gradients and optimizer state, stage 3 the parameters too.
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=DeepSpeedCPUAdam(groups, lr=cfg.learning_rate, betas=(0.9, 0.95)),
    lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, schedule),
    config={
        "train_micro_batch_size_per_gpu": cfg.batch_size,
        "gradient_clipping": cfg.gradient_clip,
        "bf16": {"enabled": cfg.dtype == "bfloat16"},
        "zero_optimization": {"stage": cfg.zero_stage, "offload_optimizer": {"device": "cpu", "pin_memory": on_gpu}},
        "steps_per_print": cfg.steps + 1,  # Never: the loop below prints.
    },
)
torch.manual_seed(seed + rank)  # From here on each process draws its own numbers, for dropout.

# -- The loop.
session = m5ws.session(engine=engine, loader=batches, total_steps=cfg.steps, checkpoint_every=cfg.checkpoint_every)
for step in session.steps():
    x, y = (part.to(engine.device) for part in step.next_batch())
    lr = engine.get_lr()[0]
    loss = engine(x, y)
    engine.backward(loss)
    engine.step()
    norm = engine.get_global_grad_norm()
    step.record(loss=loss, grad_norm=norm, lr=lr, tokens=x.numel())
    if rank == 0 and step.number % cfg.log_every == 0:
        print(f"step {step.number}/{cfg.steps}  loss {loss.item():.4f}  gradient {float(norm):.3f}  lr {lr:.2e}")

dist.barrier()  # On a busy machine, a process may abort that ends while others still communicate.
dist.destroy_process_group()
