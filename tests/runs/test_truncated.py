"""Checkpoint files without their end: found at each length, and no other file is taken for one."""

import io
import json
import struct
import zipfile
from pathlib import Path

import pytest

from m5ws.runs.outputs import truncated


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02." * 20)
        archive.writestr("archive/data/0", bytes(range(256)))
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


@pytest.mark.parametrize(
    ("name", "whole"),
    [("a.pt", _zip()), ("a.ckpt", _zip()), ("a.safetensors", _safetensors())],
    ids=["pt", "ckpt", "safetensors"],
)
def test_a_file_is_complete_at_its_whole_length_alone(tmp_path: Path, name: str, whole: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(whole)
    assert not truncated.is_truncated(path)
    begins = (*range(0, len(whole), 7), len(whole) - 1)
    path_of = {length: tmp_path / f"{length}{path.suffix}" for length in begins}
    for length, short in path_of.items():
        short.write_bytes(whole[:length])
    # Fewer bytes than the mark of a zip file could be of any format.
    least = 1 if path.suffix == ".safetensors" else 4
    kept = [length for length, short in path_of.items() if not truncated.is_truncated(short)]
    assert [length for length in kept if length == 0 or length >= least] == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pytorch_model.bin", b"\x80\x02}q\x00."),  # a pickle, as older versions of PyTorch wrote it
        ("tokens.bin", bytes(100)),
        ("log.txt", b""),
        ("odd.safetensors", struct.pack("<Q", 2) + b"[]"),
        ("archive.zip", _zip()[:50]),
    ],
    ids=["pickle", "bytes", "empty", "no header", "another suffix"],
)
def test_other_formats_are_not_judged(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert not truncated.is_truncated(tmp_path / name)
    assert not truncated.is_truncated(tmp_path / "missing.pt")
