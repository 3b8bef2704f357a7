"""Saves a trained FSDP2 model from 1, 2 and 3 ranks and loads each into 1, 2 and 3: all in one start of 3 ranks.

Called as: reshard.py STORE. Prints one line for each pair that is equal bit for bit; fails at the first that is not.
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from m5ws.records import Content
from m5ws.repository import Repository
from m5ws.store import open_store
from m5ws.training import control, fingerprint
from m5ws.training.fsdp import FsdpBackend
from m5ws.training.staging import Buffers

# Smaller than the model's tensors, so that they are cut on the grid; an odd size, so that cuts fall within rows.
CHUNK_BYTES, SMALL_BYTES = 1000, 300


def train(ranks: int, seed: int, steps: int) -> FsdpBackend:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 31),
        torch.nn.LayerNorm(31),
        torch.nn.Linear(31, 16, dtype=torch.bfloat16),
        torch.nn.Linear(2, 1),
    )
    model.register_buffer("table", torch.arange(5))
    if ranks > 1:
        mesh = DeviceMesh("cpu", list(range(ranks)))
        for part in model:
            fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter) * 0.3
        optimizer.step()
    return FsdpBackend(model, optimizer)


def wipe(backend: FsdpBackend) -> None:
    for piece in backend.tensors():
        piece.tensor.zero_()


def main(store: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    objects = Repository.open(open_store(store)).objects
    groups = {1: None, 2: dist.new_group([0, 1]), 3: dist.new_group([0, 1, 2])}
    expected = None
    for saving, group in groups.items():
        saved = None
        if rank < saving:
            backend = train(saving, seed=1, steps=3)
            found = fingerprint.fingerprints(backend.tensors(), group)
            expected = expected or found
            assert found == expected, f"{saving} ranks trained to another state"
            staged = backend.stage(Buffers())
            wipe(backend)  # what is staged is not the training's any more
            saved = staged.save(objects, group, found)
        box = control.broadcast((saved.tensors, saved.common) if saved and rank == 0 else None, groups[3])
        content = Content(format="dcp/1", world=saving, tensors=box[0])
        for loading, other in groups.items():
            if rank < loading:
                backend = train(loading, seed=2, steps=loading - 1)  # with and without optimizer state of its own
                backend.load(objects, content, box[1], None, other)
                found = fingerprint.fingerprints(backend.tensors(), other)
                reference = control.broadcast(expected if rank == 0 else None, other)
                assert found == reference, f"{saving} to {loading}: {found} instead of {reference}"
                if rank == 0:
                    print(f"{saving} to {loading} is exact")
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1])
