"""Archives: the members of gzip, tar and zip files are compared, their times are not."""

import gzip
import io
import pickle
import tarfile
import zipfile

import pytest
import torch

from m5ws.reproduce.outputs import archives, tensor_files

Members = dict[str, bytes]


def _saved(loss: float) -> bytes:
    file = io.BytesIO()
    torch.save({"w": torch.full((3,), loss)}, file)
    return file.getvalue()


def _members(loss: float) -> Members:
    return {
        "policy.pth": _saved(loss),
        "state/metrics.json": b'{"time": 1, "steps": 5}',
        "data": b"text",
        "raw": b"\xff\xfe",
    }


def _zip(members: Members, time_s: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, (2000 + time_s, 1, 1, 0, 0, 0)), data)
    return file.getvalue()


def _tar(members: Members, time_s: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), time_s
            archive.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def _gzip(data: bytes, time_s: int) -> bytes:
    return gzip.compress(data, mtime=time_s)


def _archive(name: str, members: Members, time_s: int) -> bytes:
    if name.endswith(".zip"):
        return _zip(members, time_s)
    data = _tar(members, time_s)
    return data if name.endswith(".tar") else _gzip(data, time_s)


def _read(name: str, data: bytes) -> tensor_files.FileParts:
    return archives.read(name, io.BytesIO(data))


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tgz"])
def test_an_archive_has_the_parts_of_its_members(name: str) -> None:
    one, two, other = (_archive(name, _members(loss), time_s) for loss, time_s in ((1, 1), (1, 9), (2, 1)))
    parts, different = _read(name, one), _read(name, other)
    assert one != two and parts == _read(name, two)
    assert parts.values == different.values and parts.values["state/metrics.json.steps"] == "5"
    assert list(parts.tensors) == ["policy.pth.w"] and parts.tensors != different.tensors
    for member in ("data", "raw"):
        changed = _members(1) | {member: b"\xff\x00"}
        assert _read(name, _archive(name, changed, 1)).values != parts.values


def test_a_file_in_gzip_has_the_parts_of_its_content() -> None:
    assert _read("w.pt.gz", _gzip(_saved(1), 1)) == _read("w.pt.gz", _gzip(_saved(1), 9)) == _read("w.pt", _saved(1))
    assert _read("w.pt.gz", _gzip(_saved(1), 1)).tensors != _read("w.pt.gz", _gzip(_saved(2), 1)).tensors
    assert _read("a.pkl.gz", _gzip(pickle.dumps({"a": 1}), 1)).values["a"] == "1"
    assert _read("a.csv.gz", _gzip(b"id,label\n1,cat\n", 1)).values["1.label"] == "cat"


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.gz", "a.tgz"])
def test_an_archive_that_expands_beyond_the_bound_is_unreadable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_EXPANDED_BYTES", 2**16)
    data = _gzip(bytes(2**20), 1) if name == "a.gz" else _archive(name, {"a": bytes(2**15), "b": bytes(2**20)}, 1)
    with pytest.raises(tensor_files.UNREADABLE, match="bound"):
        _read(name, data)


def test_a_damaged_archive_and_one_with_a_link_are_unreadable() -> None:
    link = io.BytesIO()
    with tarfile.open(fileobj=link, mode="w") as archive:
        entry = tarfile.TarInfo("a")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(entry)
    whole = {name: _archive(name, _members(1), 1) for name in ("a.zip", "a.tar", "a.tgz")}
    cut = [(name, data[: len(data) // 2]) for name, data in whole.items()]
    for name, data in [*cut, ("a.tar", link.getvalue()), ("a.gz", b"text"), ("a.zip", b""), ("a.tar", b"text")]:
        with pytest.raises(tensor_files.UNREADABLE):
            _read(name, data)
