"""Checkpoint files without their end: found at each length by their content, and no other file is taken for one."""

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.package.package_exporter import PackageExporter

from m5ws.runs.outputs import checkpoint_formats


def _save(state: object, *, is_new: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer, _use_new_zipfile_serialization=is_new)
    return buffer.getvalue()


def _zip(comment: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02." * 20)
        archive.writestr("archive/data/0", bytes(range(256)))
        archive.comment = comment
    return buffer.getvalue()


def _arrays(*arrays: object) -> bytes:
    buffer = io.BytesIO()
    for array in arrays:
        np.save(buffer, array)  # type: ignore[arg-type]
    return buffer.getvalue()


def _safetensors() -> bytes:
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]},
            "b": {"dtype": "F32", "shape": [4], "data_offsets": [64, 80]},
        }
    ).encode()
    return struct.pack("<Q", len(header)) + header + bytes(80)


_TENSORS = {"w": torch.ones(20), "views": [torch.zeros(4, 4)[1], torch.zeros(3, dtype=torch.bfloat16)], "lr": {1: 0.1}}
_WHOLE = {
    "PyTorch": _save(_TENSORS),
    "PyTorch in PyTorch": _save({"w": torch.frombuffer(bytearray(_save(torch.ones(2))), dtype=torch.uint8)}),
    "PyTorch before 1.6": _save(_TENSORS, is_new=False),
    "a zip file with a comment": _zip(b"comment"),
    "npy": _arrays(np.ones((3, 4))),
    "npy of records": _arrays(np.zeros(3, dtype=[("a", "i4", (2,)), ("b", "U3"), ("c", [("d", "f2")])])),
    "npy of dates": _arrays(np.zeros(3, dtype="M8[ns]")),
    "safetensors": _safetensors(),
}


@pytest.mark.parametrize("kind", _WHOLE)
@pytest.mark.parametrize("name", ["checkpoint.pth.tar", "model", "model.PT"])
def test_a_file_is_complete_at_its_whole_length_alone(tmp_path: Path, kind: str, name: str) -> None:
    path, whole = tmp_path / name, _WHOLE[kind]
    path.write_bytes(whole)
    assert checkpoint_formats.ending(path) == "complete"
    assert checkpoint_formats.is_checkpoint(whole[: checkpoint_formats.BEGIN_BYTES])
    # The length that begins a safetensors file could be of any format.
    least = 9 if kind == "safetensors" else 3
    for length in sorted({*range(least, len(whole), 97), *range(max(least, len(whole) - 30), len(whole))}):
        path.write_bytes(whole[:length])
        assert checkpoint_formats.ending(path) == "cut", length


def test_a_file_that_was_cut_behind_an_inner_zip_file_is_not_complete(tmp_path: Path) -> None:
    inner, path = _save({"w": torch.ones(2)}), tmp_path / "model.pt"
    whole = _save({"inner": torch.frombuffer(bytearray(inner * 2), dtype=torch.uint8), "w": torch.ones(20)})
    ends = [place + len(inner) for place in range(len(whole)) if whole.startswith(inner, place)]
    assert len(ends) == 2
    for end in ends:
        path.write_bytes(whole[:end])
        assert checkpoint_formats.ending(path) == "cut"


def test_a_file_whose_save_ended_with_an_exception_is_cut_though_it_was_closed(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with pytest.raises(AttributeError):
        torch.save({"w": torch.ones(20), "cannot be pickled": lambda: 0}, path)
    assert zipfile.is_zipfile(path) and checkpoint_formats.ending(path) == "cut"
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), path)
    assert checkpoint_formats.ending(path) == "complete"


_QUANTIZED = torch.quantize_per_tensor(torch.ones(9), 0.1, 0, torch.qint8)
_STATES = {
    "shared storages": [_TENSORS, _TENSORS["w"][2:], _TENSORS["w"].view(4, 5)],  # type: ignore[index, attr-defined]
    "several types": [torch.zeros(7, dtype=kind) for kind in (torch.bfloat16, torch.complex64, torch.uint16)],
    "quantized": [_QUANTIZED, _QUANTIZED.int_repr()],
    "empty": [torch.empty(0), torch.empty(0, 3, dtype=torch.int64)],
    "sparse": torch.eye(4).to_sparse(),
    "objects": {"rng": torch.get_rng_state(), "numpy": np.ones(3), "path": Path("a"), "set": {torch.float32}},
    "module": torch.nn.Linear(2, 2),
}


@pytest.mark.parametrize("state", [*_STATES.values(), torch.empty(5, device="meta")], ids=[*_STATES, "meta"])
def test_a_closed_file_without_one_of_its_storages_is_cut(tmp_path: Path, state: object) -> None:
    path = tmp_path / "model.pt"
    torch.save(state, path)
    assert checkpoint_formats.ending(path) == "complete"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for storage in (name for name in members if name.startswith("model/data/")):
        missing = {name: content for name, content in members.items() if name != storage}
        for changed in (missing, {**members, storage: members[storage][:-1]}):
            with zipfile.ZipFile(path, "w") as archive:
                for name, content in changed.items():
                    archive.writestr(name, content)
            assert checkpoint_formats.ending(path) == ("complete" if changed == members else "cut"), storage
    torch.save(state, path, _use_new_zipfile_serialization=False)
    assert checkpoint_formats.ending(path) == "complete"


def test_a_save_that_an_exception_ends_at_any_record_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, left = tmp_path / "model.pt", 0

    class Interrupted(torch._C.PyTorchFileWriter):
        def write_record(self, *given: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            super().write_record(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(torch._C, "PyTorchFileWriter", Interrupted)
    for number in range(7):
        left = number
        with pytest.raises(KeyboardInterrupt):
            torch.save(_TENSORS, path)
        assert checkpoint_formats.ending(path) == "cut", number
    left = 7
    torch.save(_TENSORS, path)
    assert checkpoint_formats.ending(path) == "complete"


def test_other_zip_files_of_pytorch_are_complete(tmp_path: Path) -> None:
    path, module = tmp_path / "model.pt", torch.nn.Linear(2, 2)
    for scripted in (torch.jit.script(module), torch.jit.freeze(torch.jit.script(module.eval()))):
        scripted.save(path)
        assert checkpoint_formats.ending(path) == "complete"
    with PackageExporter(path) as exporter:
        exporter.extern("**")
        exporter.save_pickle("model", "data.pkl", module)
    assert checkpoint_formats.ending(path) == "complete"
    with torch.serialization.skip_data():
        torch.save(_TENSORS, path)
    assert checkpoint_formats.ending(path) == "complete"


@pytest.mark.parametrize("is_compressed", [True, False])
def test_a_closed_npz_with_a_part_of_an_array_is_cut(tmp_path: Path, is_compressed: bool) -> None:
    path, whole = tmp_path / "arrays.npz", _arrays(np.ones((3, 4)))
    for length in range(len(whole) + 1):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if is_compressed else zipfile.ZIP_STORED) as archive:
            archive.writestr("a.npy", whole)
            archive.writestr("b.npy", whole[:length])
        assert checkpoint_formats.ending(path) == ("complete" if length == len(whole) else "cut"), length
    arrays = {"a": np.ones(3), "b": np.zeros((0, 2)), "c": np.array([{}], dtype=object), "d": np.array("text")}
    (np.savez_compressed if is_compressed else np.savez)(path, **arrays)  # type: ignore[arg-type]
    assert checkpoint_formats.ending(path) == "complete"


def test_zip_files_and_arrays_in_sequence_are_complete(tmp_path: Path) -> None:
    path = tmp_path / "__0_0.distcp"
    for several in ([_save(torch.ones(2)), _save(torch.ones(3))], [_arrays(np.ones(3)), _arrays(np.ones(4))]):
        path.write_bytes(b"".join(several))
        assert checkpoint_formats.ending(path) == "complete"
        path.write_bytes(b"".join(several)[:-1])
        assert checkpoint_formats.ending(path) == "cut"


@pytest.mark.parametrize("name", ["a.pt", "a.pth", "a.bin", "a.CKPT", "a.npz", "a.npy", "a.safetensors"])
def test_a_file_shorter_than_its_format_s_begin_is_judged_by_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert checkpoint_formats.ending(tmp_path / name) == "cut"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pytorch_model.bin", pickle.dumps({"a": 1})),
        ("tokens.bin", bytes(100)),
        ("log.txt", b""),
        ("note.pt", b"ok"),
        ("__1_0.distcp", b""),
        ("odd.safetensors", struct.pack("<Q", 2) + b"[]"),
        ("objects.npy", _arrays(np.array([{}, []], dtype=object))),
        ("objects.npy", _arrays(np.array([{}, []], dtype=object))[:-1]),
    ],
)
def test_other_formats_are_not_judged(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert checkpoint_formats.ending(tmp_path / name) is None
    assert checkpoint_formats.ending(tmp_path / "missing.pt") is None


def test_no_code_of_a_pickle_is_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return exec, (f"open({str(tmp_path / 'run')!r}, 'w')",)

    for is_new in (True, False):
        (tmp_path / "a.pt").write_bytes(_save({"evil": Evil(), "w": torch.ones(2)}, is_new=is_new))
        assert checkpoint_formats.ending(tmp_path / "a.pt") == "complete"
        assert not (tmp_path / "run").exists()
