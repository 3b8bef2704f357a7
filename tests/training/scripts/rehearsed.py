"""Rehearses states on 4 ranks whose tensors are alike on some ranks: the plan has all tensors, one by one."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, zeros

from m5ws.training.backends import placement, shard_writer
from m5ws.training.state.plain_state import StateError

State = dict[str, torch.Tensor]


def state(rank: int) -> State:
    """Return tensors of few layouts: whole, sharded, of a half of the ranks, and with other sizes or types."""
    world, square = DeviceMesh("cpu", [0, 1, 2, 3]), DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("a", "b"))
    side = "left" if rank < 2 else "right"
    tensors: State = {}
    for number in range(3):
        tensors |= {
            f"whole.{number}": torch.zeros(5, 3),
            f"turned.{number}": torch.zeros(3, 5).T,
            f"half.{number}": torch.zeros(5, 3, dtype=torch.bfloat16),
            f"empty.{number}": torch.zeros(0, 3),
            f"number.{number}": torch.zeros(()),
            f"rows.{number}": zeros(7, 3, device_mesh=world, placements=[Shard(0)]),
            f"columns.{number}": zeros(7, 3, device_mesh=world, placements=[Shard(1)]),
            f"blocks.{number}": zeros(7, 3, device_mesh=square, placements=[Shard(0), Shard(1)]),
            f"{side}.{number}": torch.zeros(5, 3),
            f"{side}.rows.{number}": zeros(7, 3, device_mesh=square["b"], placements=[Shard(0)]),
        }
    return tensors


def main() -> None:
    dist.init_process_group("gloo")
    rank, group = dist.get_rank(), dist.group.WORLD
    tensors = state(rank)
    table = placement.agree(placement.describe(tensors), group)
    stored = [tensor.name for _, tensor, _ in shard_writer.plan(tensors, table, rank, 4)]
    if rank == 0:
        print(f"{len(table)} tensors are planned")
    print(f"rank {rank} stores {len(stored)}: {' '.join(name for name in stored if name.endswith('rows.1'))}\n", end="")
    if rank == 3:
        del tensors["rows.1"]
    try:
        placement.agree(placement.describe(tensors), group)
    except StateError as error:
        print(f"rank {rank}: {str(error).strip()}\n", end="")  # One write: the ranks share the file.
    dist.destroy_process_group()


main()
