"""Files of weights, read without running code in them."""

import io
import os
import pickle
from pathlib import Path

import pytest
import torch

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
