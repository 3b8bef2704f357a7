"""Saves a trained model from each of several layouts on 1 to 4 ranks and loads each into each: in one start of 4 ranks.

Called as: reshard.py STORE. Prints one line for each pair that is equal bit for bit; fails at the first that is not.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from m5ws.repository import contents
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from m5ws.training.backends.torch_backend import TorchBackend
from m5ws.training.checkpoint.writer import HostBuffers
from m5ws.training.fingerprint import fingerprint
from m5ws.training.runtime import collectives

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.support.records import kinds, tensor_states

# Smaller than the model's tensors, so that they are cut on the grid; an odd size, so that cuts fall within rows.
CHUNK_BYTES, SMALL_BYTES = 1000, 300
# Placements of a sharded parameter; buffers are whole, and of every kind.
DTYPES = {name: getattr(torch, name) for name in ("float8_e4m3fn", "int8", "bool", "complex64", "float16")}
TENSOR_PARALLEL = {"0": ColwiseParallel, "2": RowwiseParallel}

Shape = Callable[[torch.nn.Sequential], torch.nn.Module]


@dataclass
class Layout:
    """The ranks and the layout of a model; `group` is a gloo group of the ranks."""

    ranks: int
    shape: Shape
    group: dist.ProcessGroup | None = field(default=None)


def replicated(model: torch.nn.Module, group: dist.ProcessGroup) -> torch.nn.Module:
    # All ranks have drawn the same; gloo could not send every kind of tensor.
    return DistributedDataParallel(model, process_group=group, init_sync=False)


def sharded(mesh: DeviceMesh) -> Shape:
    def shape(model: torch.nn.Sequential) -> torch.nn.Module:
        for part in model:
            fully_shard(part, mesh=mesh)
        return model

    return shape


def tensor_parallel(mesh: DeviceMesh) -> Shape:
    return lambda model: parallelize_module(model, mesh, {name: kind() for name, kind in TENSOR_PARALLEL.items()})


def layouts() -> dict[str, Layout]:
    """Return all layouts; every rank makes all meshes and groups, in the same order."""
    pair, groups = DeviceMesh("cpu", [0, 1]), {n: dist.new_group(list(range(n))) for n in (2, 3, 4)}
    square = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("outer", "inner"))
    both = tensor_parallel(square["inner"]), sharded(square["outer"])
    return {
        "one": Layout(1, lambda model: model),
        "ddp-2": Layout(2, lambda model: replicated(model, groups[2]), groups[2]),
        "fsdp-2": Layout(2, sharded(pair), groups[2]),
        "fsdp-3": Layout(3, sharded(DeviceMesh("cpu", [0, 1, 2])), groups[3]),
        "fsdp-4": Layout(4, sharded(DeviceMesh("cpu", [0, 1, 2, 3])), groups[4]),
        "hsdp-2x2": Layout(4, sharded(square), groups[4]),
        "tp-2": Layout(2, tensor_parallel(pair), groups[2]),
        "fsdp-2-tp-2": Layout(4, lambda model: both[1](both[0](model)), groups[4]),  # type: ignore[arg-type]
    }


class Tied(torch.nn.Module):
    """An embedding whose weights the head has too, and a part that is never trained."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(6, 4)
        self.head = torch.nn.Linear(4, 6)
        self.head.weight = self.embedding.weight
        self.empty = torch.nn.Parameter(torch.empty(0, 3))
        for name, dtype in DTYPES.items():
            frozen = kinds.random((5, 3), dtype)
            self.register_parameter(f"frozen_{name}", torch.nn.Parameter(frozen, requires_grad=False))


def train(layout: Layout, seed: int, steps: int) -> TorchBackend:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32),
        torch.nn.LayerNorm(32),
        torch.nn.Linear(32, 16, dtype=torch.bfloat16),
        torch.nn.Linear(7, 5),
        torch.nn.Linear(2, 1),
        Tied(),
    )
    for number, (name, buffer) in enumerate(kinds.buffers().items()):
        model.register_buffer(f"kind_{name}", buffer, persistent=bool(number % 2))
    shaped = layout.shape(model)
    optimizer = torch.optim.AdamW((each for each in shaped.parameters() if each.requires_grad), lr=0.1)
    for _ in range(steps):
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter) * 0.3
        optimizer.step()
        for parameter in optimizer.param_groups[0]["params"]:
            optimizer.state[parameter] |= {"alike": [{"step": steps}], "own": dist.get_rank()}
    return TorchBackend(shaped, optimizer)


def wipe(backend: TorchBackend) -> None:
    for piece in backend.tensors():
        kinds.wipe(piece.tensor)


def main(store: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    objects = Repository.open(open_store(store)).objects
    every = layouts()
    all_ranks = every["fsdp-4"].group
    expected = None
    for saving, layout in every.items():
        saved = content = None
        if rank < layout.ranks:
            backend = train(layout, seed=1, steps=3)
            prints = fingerprint.fingerprints(backend.tensors(), layout.group)
            found = prints.values
            expected = expected or found
            assert found == expected, f"{saving} trained to another state"
            staged = backend.stage(HostBuffers())
            wipe(backend)  # the staged copy does not share the training's memory
            saved = staged.save(objects, layout.group, prints.apart)
            content = tensor_states.gathered(saved, objects, layout.group)
        box = collectives.broadcast((content, saved.common) if saved and rank == 0 else None, all_ranks)
        content = box[0]
        for loading, other in every.items():
            if rank < other.ranks:
                backend = train(other, seed=2, steps=other.ranks - 1)  # with and without optimizer state of its own
                backend.load(objects, content, contents.Parts(objects, content), box[1], None, other.group)
                found = fingerprint.fingerprints(backend.tensors(), other.group).values
                # Rank 0 alone has fingerprints, and is a rank of every layout.
                assert rank or found == expected, f"{saving} to {loading}: {found} instead of {expected}"
                beside = [values for _, values in backend._optimizer_state(backend._parameters())]
                # One rank has no other rank to differ from.
                own = {"own"} if layout.ranks == 1 else set()
                assert beside and all(values["alike"] == [{"step": 3}] for values in beside)
                assert all(values.keys() & {"own"} == own for values in beside)
                if rank == 0:
                    print(f"{saving} to {loading} is exact")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
