"""torch.distributed.checkpoint on a repository: exact on any number of ranks, and never a pickle."""

import gc
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from m5ws.errors import CorruptObject
from m5ws.records.checkpoint import Content
from m5ws.records.store import Format
from m5ws.records.tree import Slice
from m5ws.repository.objects import key
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from m5ws.training.backends import dcp, dcp_reader, dcp_writer
from m5ws.training.backends.base import Piece
from m5ws.training.fingerprint import fingerprint
from m5ws.training.state.plain_state import RestoreError, StateError
from tests.support.ranks import forks

HERE = Path(__file__).parent


LAYOUTS = ("one", "ddp-2", "fsdp-2", "fsdp-3", "fsdp-4", "hsdp-2x2", "tp-2", "fsdp-2-tp-2")


@pytest.mark.long
def test_a_save_from_any_layout_loads_exactly_into_any(fork_parents: forks.ForkParents, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    Repository.create(store, Format(chunk_bytes=1000, small_bytes=300, pack_bytes=2000))
    script = str(HERE / "scripts" / "reshard.py")
    status, log = forks.run(fork_parents, script, str(store.root), directory=tmp_path, ranks=4)
    assert status == 0, log
    assert [line for line in log.splitlines() if line.endswith("is exact")] == [
        f"{a} to {b} is exact" for a in LAYOUTS for b in LAYOUTS
    ]


def bits(state: dict[str, torch.Tensor]) -> dict[str, str]:
    return fingerprint.fingerprints((Piece(name, tensor) for name, tensor in state.items()), None)


def save(repo: Repository, state: dict[str, Any]) -> Content:
    tensors, blobs = dcp.save(state, repo.objects, None)
    return Content(format="dcp/1", world=1, tensors=tensors, blobs=blobs)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_load_leaves_the_collection_of_cycles_as_it_was(repo: Repository, enabled: bool) -> None:
    content = save(repo, {"t": torch.ones(3)})
    try:
        gc.enable() if enabled else gc.disable()
        dcp.load({"t": torch.zeros(3)}, repo.objects, content, None)
        assert gc.isenabled() is enabled
        with pytest.raises(RestoreError, match="float32"):
            dcp.load({"t": torch.zeros(3, dtype=torch.float64)}, repo.objects, content, None)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_a_flipped_bit_is_never_loaded(repo: Repository, store: LocalStore) -> None:
    content = save(repo, {"t": torch.ones(3)})
    path = store.root / key(content.tensors[0].shards[0].parts[0].object)
    path.chmod(0o644)
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    target = torch.zeros(3)
    with pytest.raises(CorruptObject):
        dcp.load({"t": target}, repo.objects, content, None)
    assert bits({"t": target}) == bits({"t": torch.zeros(3)})


class Bomb:
    armed = False

    def __reduce__(self) -> Any:
        return (setattr, (Bomb, "armed", True))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_byte_items_load_only_if_they_hold_plain_data(repo: Repository) -> None:
    writer = dcp_writer.RepositoryWriter(repo.objects)
    state: dict[str, Any] = {"plain": {"a": [1, 2]}, "bomb": Bomb()}
    save_state(state, storage_writer=writer, planner=DefaultSavePlanner(flatten_state_dict=False), no_dist=True)
    content = Content(format="dcp/1", world=1, tensors=writer.tensors, blobs=writer.blobs)
    harmless: dict[str, Any] = {"plain": None}
    reader = dcp_reader.RepositoryReader(repo.objects, content)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    load_state(harmless, storage_reader=reader, planner=planner, no_dist=True)
    assert harmless == {"plain": {"a": [1, 2]}}
    with pytest.raises(RestoreError):
        dcp.load({"bomb": None}, repo.objects, content, None)
    assert not Bomb.armed
    torch.load(io.BytesIO(repo.objects.read(content.blobs["bomb"])), weights_only=False)
    assert Bomb.armed  # the pickle would have run


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_bytes_that_a_state_holds_are_given_back_and_not_looked_into(repo: Repository) -> None:
    Bomb.armed = False
    data = pickle.dumps(Bomb())
    writer = dcp_writer.RepositoryWriter(repo.objects)
    flat = DefaultSavePlanner(flatten_state_dict=False)
    save_state({"held": {"losses": io.BytesIO(data)}}, storage_writer=writer, planner=flat, no_dist=True)
    content = Content(format="dcp/1", world=1, tensors=writer.tensors, blobs=writer.blobs)
    target: dict[str, Any] = {"held": None}
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    load_state(target, storage_reader=dcp_reader.RepositoryReader(repo.objects, content), planner=planner, no_dist=True)
    assert target["held"]["losses"].getvalue() == data
    assert not Bomb.armed
    pickle.loads(data)  # noqa: S301  the test's own pickle
    assert Bomb.armed  # the pickle would have run


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_byte_item_larger_than_an_object_is_refused_by_name(tmp_path: Path) -> None:
    repo = Repository.create(LocalStore(tmp_path / "store"), Format(chunk_bytes=1000, small_bytes=300, pack_bytes=2000))
    with pytest.raises(StateError, match=r"notes.* \d+ bytes"):
        dcp.save({"notes": ["a" * 2000]}, repo.objects, None)


@given(st.lists(st.integers(1, 50), max_size=8), st.integers(0, 400), st.integers(1, 400))
def test_the_parts_read_are_those_that_hold_the_bytes(sizes: list[int], start: int, length: int) -> None:
    edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    parts = [Slice(object=str(i), offset=0, size_bytes=size, digest="") for i, size in enumerate(sizes)]
    wanted, base = dcp_reader._covering(parts, start, start + length)
    expected = [i for i in range(len(sizes)) if edges[i] < start + length and edges[i + 1] > start]
    assert [int(part.object) for part in wanted] == expected
    assert not expected or base == edges[expected[0]]
