"""Tensors on a repository: exact on any number of ranks, and never a pickle."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from m5ws.errors import CorruptObject
from m5ws.records import codec
from m5ws.records.store import Format
from m5ws.records.tree import Slice
from m5ws.repository import contents
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from m5ws.training.backends import shard_reader
from m5ws.training.backends.base import NoCopyStager
from m5ws.training.backends.torch_backend import TorchBackend
from m5ws.training.state.plain_state import StateError
from tests.support.ranks import forks
from tests.support.records import contents as forged
from tests.support.records import tensor_states
from tests.support.stores.memory_store import MemoryStore

HERE = Path(__file__).parent


LAYOUTS = ("one", "ddp-2", "fsdp-2", "fsdp-3", "fsdp-4", "hsdp-2x2", "tp-2", "fsdp-2-tp-2")


@pytest.mark.long
def test_a_save_from_any_layout_loads_exactly_into_any_layout(fork_parents: forks.ForkParents, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    Repository.create(store, Format(chunk_bytes=1000, small_bytes=300, pack_bytes=2000))
    script = str(HERE / "scripts" / "reshard.py")
    status, log = forks.run(fork_parents, script, str(store.root), directory=tmp_path, ranks=4)
    assert status == 0, log
    assert [line for line in log.splitlines() if line.endswith("is exact")] == [
        f"{a} to {b} is exact" for a in LAYOUTS for b in LAYOUTS
    ]


ODD_LAYOUTS = {
    "no elements": "exact",
    "zeros of two types": "exact",
    "zeros of two shapes": "exact",
    "regular copies": "exact",
    "irregular ranks": "exact",
    "two cuts": "buffer.t is sharded differently on another rank",
    "descending ranks": "buffer.t is sharded over ranks in descending order",
    "descending ranks of copies": "exact",
    "descending copies of shards": "exact",
    "torn on two ranks": "ranks hold copies of buffer.t that differ: no checkpoint could be exact",
    "errors of two ranks": "object 1 is damaged / object 3 is damaged / "
    "rank 1 could not read its part: object 1 is damaged",
}


def test_layouts_that_differ_between_ranks_are_exact_or_refused_on_all_ranks(
    fork_parents: forks.ForkParents, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "store")
    Repository.create(store)
    script = str(HERE / "scripts" / "odd_layouts.py")
    status, log = forks.run(fork_parents, script, str(store.root), directory=tmp_path, ranks=4)
    assert status == 0, log
    assert dict(line.split(": ", 1) for line in log.splitlines() if ": " in line) == ODD_LAYOUTS


NAMES = st.text(st.sampled_from("a@[]/ \n\x00μ\U0001f600\ud800\udcff"), max_size=4) | st.just(
    "n" * contents.NAME_CHARACTERS
)


@given(NAMES)
def test_a_name_is_stored_as_it_is_or_refused(name: str) -> None:
    model = torch.nn.Module()
    model.register_buffer(f"b{name}", torch.ones(2))
    saving = TorchBackend(model, None)
    if "@" in name or "\ud800" in name or "\udcff" in name or len(name) == contents.NAME_CHARACTERS:
        with pytest.raises(StateError, match="name"):
            list(saving.tensors())
        return
    objects = Repository.create(MemoryStore()).objects
    content = tensor_states.alone(saving.stage(NoCopyStager()).save(objects, None, ()), objects)
    assert [tensor.name for tensor in contents.load_table(objects, content)] == [f"buffer.b{name}"]


class Bomb:
    armed = False

    def __reduce__(self) -> Any:
        return (setattr, (Bomb, "armed", True))


def test_a_pickle_in_a_checkpoint_is_never_read(repo: Repository) -> None:
    data = pickle.dumps(Bomb())
    digest = repo.objects.put(data)
    blob = Slice(object=digest, offset=0, size_bytes=len(data), digest=digest)
    sound = tensor_states.save({"t": torch.ones(3)}, repo.objects)
    (tensor,) = contents.tensors(repo.objects, sound)
    content = forged.content(repo.objects, tensors=[tensor], blobs={"t": blob, "bomb": blob})
    target = torch.zeros(3)
    tensor_states.load({"t": target}, repo.objects, content)
    assert target.tolist() == [1, 1, 1]
    with pytest.raises(CorruptObject, match="bomb"):
        tensor_states.load({"bomb": torch.zeros(3)}, repo.objects, content)
    with pytest.raises(CorruptObject):
        codec.decode_plain(repo.objects.read(blob))
    assert not Bomb.armed
    pickle.loads(data)  # noqa: S301  the test's own pickle
    assert Bomb.armed  # the pickle would have run


@given(st.lists(st.integers(1, 50), max_size=8), st.integers(0, 400), st.integers(1, 400))
def test_only_parts_with_wanted_bytes_are_read(sizes: list[int], start: int, length: int) -> None:
    edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    parts = [Slice(object=str(i), offset=0, size_bytes=size, digest="") for i, size in enumerate(sizes)]
    wanted, base = shard_reader._covering(parts, start, start + length)
    expected = [i for i in range(len(sizes)) if edges[i] < start + length and edges[i + 1] > start]
    assert [int(part.object) for part in wanted] == expected
    assert not expected or base == edges[expected[0]]
