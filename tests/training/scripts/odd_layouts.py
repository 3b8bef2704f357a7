"""Saves states whose layouts differ between 4 ranks, in one start, and loads each that was saved.

Called as: odd_layouts.py STORE. Prints a line for each case: exact, or the error that every rank had.
"""

import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from m5ws.errors import M5Error
from m5ws.repository import contents
from m5ws.repository.objects import Objects
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from m5ws.training.backends.base import NoCopyStager
from m5ws.training.backends.torch_backend import TorchBackend
from m5ws.training.fingerprint import fingerprint
from m5ws.training.runtime import collectives

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.support.records import kinds, tensor_states

State = dict[str, torch.Tensor]


def cases(rank: int) -> dict[str, State]:
    """Return the states of a rank; every rank makes all meshes, in the same order."""
    pairs = [DeviceMesh("cpu", ranks) for ranks in ([0, 1], [2, 3])]
    crossed = [DeviceMesh("cpu", ranks) for ranks in ([1, 0], [3, 2])]
    three, swapped = DeviceMesh("cpu", [0, 1, 3]), DeviceMesh("cpu", [[2, 3], [0, 1]])
    half, whole = rank // 2, torch.arange(12.0).view(4, 3)

    def cut(meshes: list[DeviceMesh], *kinds_: Shard | Replicate) -> DTensor:
        mesh, kind = meshes[half], kinds_[half % len(kinds_)]
        return distribute_tensor(whole.clone(), mesh, [kind], src_data_rank=None)

    torn = cut(pairs, Replicate())
    torn.to_local().add_(rank == 1)
    return {
        "no elements": {"t": torch.zeros(0, rank + 1)},
        "zeros of two types": {"t": torch.zeros(3, dtype=torch.float32 if half else torch.int32)},
        "zeros of two shapes": {"t": torch.zeros((2, 3) if half else (3, 2))},
        "regular copies": {"t": cut(pairs, Shard(0))},
        "irregular ranks": {"t": cut([three, three], Shard(1))},
        "two cuts": {"t": cut(pairs, Shard(0), Shard(1))},
        "descending ranks": {"t": cut(crossed, Shard(0))},
        "descending ranks of copies": {"t": cut(crossed, Replicate())},
        "descending copies of shards": {
            "t": distribute_tensor(whole.clone(), swapped, [Replicate(), Shard(0)], src_data_rank=None)
        },
        "torn on two ranks": {"u" if half else "t": torn},
    }


def backend(state: State) -> TorchBackend:
    model = torch.nn.Module()
    for name, tensor in state.items():
        model.register_buffer(name, tensor)
    return TorchBackend(model, None)


def attempt(state: State, objects: Objects, group: dist.ProcessGroup) -> str:
    saving = backend(state)
    prints = fingerprint.fingerprints(saving.tensors(), group)
    saved = saving.stage(NoCopyStager()).save(objects, group, prints.apart)
    content = tensor_states.gathered(saved, objects, group)
    content, common = collectives.broadcast((content, saved.common), group)
    expected = {piece.name: piece.tensor.clone() for piece in saving.tensors()}
    for piece in saving.tensors():
        kinds.wipe(piece.tensor)
    saving.load(objects, content, contents.Parts(objects, content), common, saved.rank, group)
    assert all(torch.equal(piece.tensor, expected[piece.name]) for piece in saving.tensors())
    again = fingerprint.fingerprints(saving.tensors(), group)
    assert again == prints
    return "exact"


def main(store: str) -> None:
    dist.init_process_group("gloo")
    group = dist.new_group(backend="gloo")
    objects = Repository.open(open_store(store)).objects
    actions = {name: partial(attempt, state, objects, group) for name, state in cases(dist.get_rank()).items()}
    for name, action in (actions | {"errors of two ranks": partial(fail, group)}).items():
        try:
            outcome = action()
        except M5Error as error:
            outcome = str(error)
        # Each rank has the same outcome, and no rank waits for another.
        outcomes = set(collectives.gather(outcome, group))
        if dist.get_rank() == 0:
            print(f"{name}: {' / '.join(sorted(outcomes))}")
    dist.destroy_process_group()


def fail(group: dist.ProcessGroup) -> str:
    rank = dist.get_rank()
    collectives.raise_on_all(M5Error(f"object {rank} is damaged") if rank % 2 else None, "read its part", group)
    return "no error"


if __name__ == "__main__":
    main(sys.argv[1])
