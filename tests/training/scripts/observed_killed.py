"""A training that knows nothing of m5ws, and continues from its own checkpoint. It is killed once.

Called as: observed_killed.py STEPS FILE MOMENT STEP OPTIMIZERS [WORD]. FILE is its checkpoint. Its last rank is killed
at a moment of STEP: after its backward pass, its update or its save. WORD: "forgets" restores the model alone, "line"
states the place.
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import m5ws

sys.path.insert(0, str(Path(__file__).parent))
from observed import WithLoss, adamw, argument, batches, sgd

steps, file, moment, at, optimizers = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
rank, ranks = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
torch.manual_seed(1)
if ranks > 1:
    dist.init_process_group("gloo")
model = WithLoss()
parts = [model] if optimizers != "both" else [model.first, model.last]
trained = [make(part) for part, make in zip(parts, [adamw if optimizers == "adamw" else sgd, adamw], strict=False)]
called = torch.nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
begin, died = 0, file.with_name("died")
if file.exists():
    stored = torch.load(file)
    begin = stored["step"]
    model.load_state_dict(stored["model"])
    for optimizer, state in zip(trained, stored["optimizers"], strict=True) if argument(6, "") != "forgets" else ():
        optimizer.load_state_dict(state)
if argument(6, "") == "line":
    m5ws.resumed_at(begin)


def die(now: str) -> None:
    if (now, step, rank + 1) == (moment, at, ranks) and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


for step, (x, target) in enumerate(batches(steps, begin + 1), begin + 1):
    called(x + rank, target)["loss"].backward()
    die("backward")
    for optimizer in trained:
        optimizer.step()
        optimizer.zero_grad()
    die("update")
    states = [optimizer.state_dict() for optimizer in trained]
    if rank == 0:
        torch.save({"step": step, "model": model.state_dict(), "optimizers": states}, file)
    if ranks > 1:
        dist.barrier()
    die("save")
