"""Files of weights, read without running code in them."""

import copy
import io
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from m5ws.reproduce.outputs import inert_pickles, tensor_files


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


def _saved_before_1_6(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=False)
    file.seek(0)
    return file


def test_a_pickle_that_calls_a_function_is_read_and_not_run(tmp_path: Path) -> None:
    file = _saved({"w": torch.ones(3), "trap": _Hostile(tmp_path / "made")})
    parts = tensor_files.read(file)
    assert not (tmp_path / "made").exists()
    assert list(parts.tensors) == ["w"] and any("mkdir" in text for text in parts.values.values())


@pytest.mark.parametrize("data", [b"", b"PK", b"\x80\x02r\xff\xff\xff\x7f.", b"PK\x03\x04", b"\x93NUMPY", b"text"])
def test_a_file_of_another_format_is_unreadable(data: bytes) -> None:
    with pytest.raises(tensor_files.UNREADABLE):
        tensor_files.read(io.BytesIO(data))


def _array(value: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, value)
    return file.getvalue()


def _arrays(save: Callable[..., None]) -> bytes:
    file = io.BytesIO()
    save(file, w=np.arange(900.0), step=np.int64(3), names=np.array(["a", "bc"]))
    return file.getvalue()


_RECORD = np.zeros(3, dtype=[("a", "<f4"), ("b", "<i8", (2,))])
_FILES = {
    "npy": _array(np.arange(6.0).reshape(2, 3)),
    "record": _array(_RECORD),
    "scalar": _array(np.array(1.0)),
    "npz": _arrays(np.savez),
    "compressed": _arrays(np.savez_compressed),
    "safetensors": safetensors.torch.save({"w": torch.arange(9.0)}),
    "torch": _saved({"w": torch.arange(900.0), "step": 3}).getvalue(),
    "legacy": _saved_before_1_6({"w": torch.arange(9.0)}).getvalue(),
    "pickle": pickle.dumps({"w": torch.arange(9.0)}),
}


@pytest.mark.parametrize("name", _FILES)
def test_a_byte_that_no_part_explains_makes_a_file_unreadable(name: str) -> None:
    """Bytes are added before the file, after it, and, in a zip file, between all of its parts."""
    data = _FILES[name]
    assert tensor_files.read(io.BytesIO(data)).tensors
    places = {0, len(data)} | {match.start() for match in re.finditer(rb"PK(\x01\x02|\x03\x04|\x05\x06)", data)}
    for place in sorted(places):
        with pytest.raises(tensor_files.UNREADABLE):
            tensor_files.read(io.BytesIO(data[:place] + b"\0" * 8 + data[place:]))


def test_two_joined_files_are_unreadable() -> None:
    for data in _FILES.values():
        with pytest.raises(tensor_files.UNREADABLE):
            tensor_files.read(io.BytesIO(data * 2))


def test_objects_in_an_array_are_values_and_not_tensors() -> None:
    file = io.BytesIO()
    np.savez(file, objects=np.array([{"a": 1}], dtype=object), w=np.ones(2))
    parts = tensor_files.read(file)
    assert list(parts.tensors) == ["w.npy"] and list(parts.values) == ["objects.npy"]


def test_bytes_of_a_storage_that_no_tensor_shows_are_a_value() -> None:
    one, two = torch.zeros(9), torch.zeros(9)
    two[8] = 1
    first, second = (tensor_files.read(_saved({"w": each[:4]})) for each in (one, two))
    assert first.tensors == second.tensors and first.values != second.values


def test_state_of_an_optimizer_is_compared_value_by_value() -> None:
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    parts = tensor_files.read(_saved({"model": layer.state_dict(), "optimizer": optimizer.state_dict()}))
    with torch.no_grad():
        layer.bias[1] += 1
    two = tensor_files.read(_saved({"model": layer.state_dict(), "optimizer": optimizer.state_dict()}))
    assert [name for name in parts.tensors if parts.tensors[name] != two.tensors[name]] == ["model.bias"]
    assert parts.values == two.values and len(parts.tensors) == 8


def test_a_tuple_and_a_list_of_the_same_values_are_equal() -> None:
    saved, restored, shorter = (
        tensor_files.read(_saved(state))
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


def test_a_file_in_the_format_before_1_6_has_the_parts_of_a_zip_file() -> None:
    def state(value: float) -> dict[str, object]:
        shared = torch.arange(6.0)
        layer = torch.nn.Linear(2, 2)
        torch.nn.init.constant_(layer.weight, value)
        torch.nn.init.zeros_(layer.bias)
        return {"layer": layer.state_dict(), "shared": shared, "part": shared[2:4], "turned": layer.weight.T, "step": 3}

    kept = [state(1.0) for _ in range(3)]  # Their storages have other addresses.
    files = [_saved_before_1_6(value) for value in (*kept, state(2.0))]
    assert files[0].getvalue() != files[1].getvalue()
    one, two, _, other = (tensor_files.read(file) for file in files)
    zipped = tensor_files.read(_saved(kept[0]))
    assert one == two and one.tensors == zipped.tensors and one.values.items() <= zipped.values.items()
    assert {name for name in one.tensors if one.tensors[name] != other.tensors[name]} == {"layer.weight", "turned"}
    whole = tensor_files.read(_saved_before_1_6(torch.nn.Linear(2, 2)))
    assert {name.rpartition(".")[2] for name in whole.tensors} >= {"(0)"}


@pytest.mark.parametrize("protocol", [2, 4])
def test_tensors_in_a_plain_pickle_are_tensors(protocol: int) -> None:
    """Each is in the format before 1.6, with an address in memory."""
    weights = [{"w": torch.full((3,), value), "step": 5} for value in (1.0, 1.0, 2.0)]
    files = [io.BytesIO(pickle.dumps(value, protocol=protocol)) for value in weights]
    one, two, other = (tensor_files.read(file) for file in files)
    assert files[0].getvalue() != files[1].getvalue() and one == two and one.tensors != other.tensors
    assert one.values == other.values and one.values["step"] == "5" and len(one.tensors) == 1


@pytest.mark.parametrize("length", [30, 200, -9, -1])
def test_a_cut_file_in_the_format_before_1_6_is_unreadable(length: int) -> None:
    data = _saved_before_1_6({"w": torch.ones(9)}).getvalue()
    with pytest.raises(tensor_files.UNREADABLE):
        tensor_files.read(io.BytesIO(data[:length]))
    with pytest.raises(tensor_files.UNREADABLE):
        tensor_files.read(io.BytesIO(data + b"1"))


def _model_class(factor: float) -> type[torch.nn.Module]:
    class Model(torch.nn.Module):
        scale = factor

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return batch * factor

    return Model


def test_a_model_with_a_pickled_class_is_compared_without_the_class_id() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")

    def saved(factor: float) -> tuple[bytes, tensor_files.FileParts]:
        model = _model_class(factor)()
        model.register_buffer("w", torch.ones(3))
        file = io.BytesIO()
        torch.save(model, file, pickle_module=cloudpickle)  # As mlflow.pytorch.log_model does.
        return file.getvalue(), tensor_files.read(file)

    (data, one), (other_data, two), (_, different) = saved(1.0), saved(1.0), saved(2.0)
    assert data != other_data and one == two and list(one.tensors) == ["(state)._buffers.w"]
    changed = {name.rpartition(".")[2] for name in one.values if one.values[name] != different.values.get(name)}
    assert {"scale"} < changed and len(changed) == 2


def test_objects_that_refer_to_their_parents_are_compared_value_by_value() -> None:
    one, same, other = (tensor_files.read(_saved({"tree": _tree(leaf)})) for leaf in (5, 5, 6))
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
    one, two = dict(inert_pickles.flat(ring)), dict(inert_pickles.flat(inner_ring))
    assert one["2"] == ("same object as", "") and two["1.1"] == ("same object as", "") and one != two


def test_objects_that_all_contain_each_other_are_unreadable() -> None:
    linked: list[dict[str, object]] = [{} for _ in range(10)]
    for number, one in enumerate(linked):
        one.update({str(other): linked[other] for other in range(10) if other != number})
    with pytest.raises(tensor_files.UNREADABLE, match="too many values"):
        tensor_files.read(io.BytesIO(pickle.dumps(linked)))


def test_a_chain_of_lists_costs_no_more_than_the_limit() -> None:
    chain: list[object] = []
    for _ in range(200_000):
        chain = [chain]
    with pytest.raises(tensor_files.UNREADABLE, match="too many values"):
        list(inert_pickles.flat(chain))


_nested = st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=20)


@given(_nested, _nested)
def test_only_equal_values_have_equal_parts(one: object, two: object) -> None:
    def parts(value: object) -> dict[str, str]:
        return tensor_files.read(io.BytesIO(pickle.dumps(value))).values

    assert parts(one) == parts(copy.deepcopy(one))
    assert (parts(one) == parts(two)) == (one == two)
