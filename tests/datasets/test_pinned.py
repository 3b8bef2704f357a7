"""Paths of files: a data set, a folder or a file inside it, on this disk or in a remote, name the same files."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from m5ws.data import pinned
from m5ws.data.remote import RemoteFiles
from m5ws.records.snapshot import Manifest, ManifestFile, RemoteDataset

_FILES = ("a.npy", "inner/b.npy", "inner/web", "web")


def _remote(paths: tuple[str, ...], md5: str) -> RemoteFiles:
    files = tuple(ManifestFile(path=path, size_bytes=1, digest="md5:" + "0" * 32) for path in paths)
    dataset = RemoteDataset(
        name="data/web", kind="dvc", url="/remote", manifest="0" * 64, size_bytes=1, files=len(files), hash=md5
    )
    return RemoteFiles(dataset, Manifest(files=files), Path("/cache"), 2**30)


@pytest.mark.parametrize("inner", ["", "inner", "a.npy", "inner/web", "web"])
def test_a_file_has_its_path_in_the_workspace_however_the_data_set_is_named(
    inner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in _FILES:
        (tmp_path / "data/web" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data/web" / path).write_text("x")
    name = os.path.join("data/web", inner).rstrip("/")
    expected = {f"data/web/{path}" for path in _FILES if f"data/web/{path}/".startswith(f"{name}/")}
    here = pinned.open_dataset(name)
    paths = [os.path.join(here.folder, file.path) for file in here.files]
    assert {*paths} == expected
    assert all(os.path.samefile(here.fetch(at), path) for at, path in enumerate(paths))
    away = pinned.of_remote(_remote(_FILES, "1.dir"), name, inner)
    assert {os.path.join(away.folder, file.path) for file in away.files} == expected


def test_a_data_set_that_is_one_file_has_its_own_path() -> None:
    dataset = pinned.of_remote(_remote(("web",), "1"), "data/web")
    assert [os.path.join(dataset.folder, file.path) for file in dataset.files] == ["data/web"]


def test_an_absolute_path_in_the_authors_checkout_is_the_path_in_the_snapshot(tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(tmp_path / "author")
    (tmp_path / "author").mkdir()
    context = SimpleNamespace(work_dir=str(tmp_path / "work"), author_dir=str(tmp_path / "alias"))
    expected = {
        f"{tmp_path}/work/data/web": "data/web", f"{tmp_path}/author/data/web": "data/web",
        f"{tmp_path}/alias/data/web": "data/web", f"{tmp_path}/author": ".", "data/web": "data/web",
        f"{tmp_path}/author-2/web": f"{tmp_path}/author-2/web",
    }  # fmt: skip
    assert {path: pinned._in_workspace(path, context) for path in expected} == expected  # type: ignore[arg-type]
