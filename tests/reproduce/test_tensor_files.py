"""Files of weights, read without running code in them."""

import copy
import io
import os
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from m5ws.reproduce.outputs import tensor_files


class _Hostile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._path),)


def _saved(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def test_a_pickle_that_calls_a_function_is_read_and_not_run(tmp_path: Path) -> None:
    file = _saved({"w": torch.ones(3), "trap": _Hostile(tmp_path / "made")})
    parts = tensor_files.read("a.pt", file)
    assert not (tmp_path / "made").exists()
    assert list(parts.tensors) == ["w"] and any("mkdir" in text for text in parts.values.values())


@pytest.mark.parametrize("data", [b"", b"PK", b"\x80\x02r\xff\xff\xff\x7f.", pickle.dumps([1.0])])
def test_what_is_no_such_file_is_unreadable(data: bytes) -> None:
    for suffix in (".pt", ".npz", ".safetensors"):
        with pytest.raises(tensor_files.UNREADABLE):
            tensor_files.read(f"a{suffix}", io.BytesIO(data))


def test_state_of_an_optimizer_is_compared_value_by_value() -> None:
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    parts = tensor_files.read("a.pt", _saved({"model": layer.state_dict(), "optimizer": optimizer.state_dict()}))
    with torch.no_grad():
        layer.bias[1] += 1
    two = tensor_files.read("a.pt", _saved({"model": layer.state_dict(), "optimizer": optimizer.state_dict()}))
    assert [name for name in parts.tensors if parts.tensors[name] != two.tensors[name]] == ["model.bias"]
    assert parts.values == two.values and len(parts.tensors) == 8


def test_a_tuple_and_a_list_of_the_same_values_are_equal() -> None:
    saved, restored, shorter = (
        tensor_files.read("a.pt", _saved(state))
        for state in (
            {"betas": (0.9, 0.1), "none": ()},
            {"betas": [0.9, 0.1], "none": []},
            {"betas": (0.9,), "none": ()},
        )
    )
    assert saved == restored != shorter


class _Node:
    """A node of a tree that knows its parent, as the configs have that Hydra puts into checkpoints."""

    def __init__(self, value: int, parent: "_Node | None") -> None:
        self.value, self.parent = value, parent
        self.children: dict[str, _Node] = {}

    def grow(self, values: list[int]) -> "_Node":
        self.children = {f"child{number}": _Node(value, self) for number, value in enumerate(values)}
        return self


def _tree(leaf: int) -> _Node:
    root = _Node(0, None).grow([1, 2, 3])
    for child in root.children.values():
        child.grow([4, leaf])
    return root


def test_objects_that_refer_to_their_parents_are_compared_value_by_value() -> None:
    one, same, other = (tensor_files.read("a.pt", _saved({"tree": _tree(leaf)})) for leaf in (5, 5, 6))
    assert one == same
    changed = [name for name in one.values if one.values[name] != other.values[name]]
    assert len(changed) == 3 and all("child1" in name and name.endswith("value") for name in changed)
    assert len(one.values) < 200


def test_a_place_of_an_object_that_contains_itself_is_compared() -> None:
    ring: list[object] = [1, [2]]
    ring.append(ring)
    inner: list[object] = [2]
    inner_ring: list[object] = [1, inner, inner]
    inner.append(inner_ring)
    one, two = dict(tensor_files.flat(ring)), dict(tensor_files.flat(inner_ring))
    assert one["2"] == ("same object as", "") and two["1.1"] == ("same object as", "") and one != two


def test_objects_that_all_contain_each_other_are_unreadable() -> None:
    linked: list[dict[str, object]] = [{} for _ in range(30)]
    for number, one in enumerate(linked):
        one.update({str(other): linked[other] for other in range(30) if other != number})
    with pytest.raises(tensor_files.UNREADABLE, match="too many values"):
        tensor_files.read("a.pkl", io.BytesIO(pickle.dumps(linked)))


def test_a_chain_of_lists_costs_no_more_than_the_limit() -> None:
    chain: list[object] = []
    for _ in range(200_000):
        chain = [chain]
    with pytest.raises(tensor_files.UNREADABLE, match="too many values"):
        list(tensor_files.flat(chain))


_nested = st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=20)


@given(_nested, _nested)
def test_two_values_have_equal_parts_only_if_they_are_equal(one: object, two: object) -> None:
    def parts(value: object) -> dict[str, str]:
        return tensor_files.read("a.pkl", io.BytesIO(pickle.dumps(value))).values

    assert parts(one) == parts(copy.deepcopy(one))
    assert (parts(one) == parts(two)) == (one == two)
