"""A training with many small parameters, which measures its own start, fingerprints, checkpoint and resume.

Usage: many_tensors_step.py OUT PARAMETERS ELEMENTS [sharded]. The first attempt fails after its only checkpoint, of
step 6. Sharded, each parameter is an FSDP2 parameter on the ranks that torchrun started; rank 0 measures.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import m5ws

_STEPS = 6
_PER_LAYER = 5
out, parameters, elements = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
is_sharded = sys.argv[4:] == ["sharded"]
times: dict[str, list[float]] = json.loads(out.read_text()) if out.exists() else {}
is_resumed = bool(times)


def now() -> tuple[float, float]:
    """Return wall and CPU time in s."""
    return time.perf_counter(), time.process_time()


def note(name: str, since: tuple[float, float]) -> None:
    """Note the times from `since` until now."""
    times.setdefault(name, []).extend(after - before for before, after in zip(since, now(), strict=True))


class Layer(nn.Module):
    """A module with small parameters."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(_PER_LAYER):
            self.register_parameter(f"weight_{number}", nn.Parameter(torch.randn(elements)))


def run_dcp() -> None:
    """Save and load the same state by DCP, into a folder."""
    with tempfile.TemporaryDirectory(dir=out.parent) as own:
        folder = shared(own)
        began = now()
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)
        note("DCP: save", began)
        began = now()
        weights, moments = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        note("DCP: load", began)
        if is_sharded:
            dist.barrier()


def shared(value: str) -> str:
    """Return rank 0's value on all ranks."""
    values = [value]
    if is_sharded:
        dist.broadcast_object_list(values)
    return values[0]


if is_sharded:
    dist.init_process_group("gloo")
model = nn.Sequential(*(Layer() for _ in range(parameters // _PER_LAYER)))
if is_sharded:
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
began = now()
session = m5ws.session(model, optimizer, total_steps=_STEPS + 2)
for step in session.steps():
    if is_resumed:
        note("resume", began)
        break
    if step.number > _STEPS:
        note("checkpoint", began)
        run_dcp()
        break
    note("start" if step.number == 1 else "step with a fingerprint", began)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    step.record(loss=0.0)
    began = now()
if not is_sharded or dist.get_rank() == 0:
    out.write_text(json.dumps(times))
sys.exit(1)
