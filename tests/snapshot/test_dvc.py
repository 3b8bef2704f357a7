"""Pins, hashes, caches and remotes of real DVC."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from m5ws.errors import CorruptObject
from m5ws.repository.files.interface import SourceFile
from m5ws.snapshot.sources import pinned_files
from m5ws.snapshot.sources.dvc import DatasetModified, Dvc, UnusablePin
from m5ws.snapshot.sources.interface import TrackedDataset

pytest.importorskip("dvc")


def dvc(folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(folder / ".dvc" / "tmp" / "site")}
    subprocess.run([sys.executable, "-m", "dvc", *arguments, "-q"], cwd=folder, check=True, env=environment)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DVC repository with a folder and a file tracked, pushed to a remote beside it."""
    root = tmp_path_factory.mktemp("dvc") / "w"
    (root / "data" / "sub").mkdir(parents=True)
    (root / "data" / "a.txt").write_bytes(b"alpha\r\n")
    (root / "data" / "sub" / "ü b.bin").write_bytes(bytes(range(256)) * 9000)
    (root / "one.csv").write_text("1,2\n")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    dvc(root, "init")
    dvc(root, "remote", "add", "-d", "near", str(root.parent / "remote"))
    dvc(root, "add", "data", "one.csv")
    dvc(root, "push")
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy of `made` whose remote is its own."""
    shutil.copytree(made.parent / "remote", tmp_path / "remote")
    shutil.copytree(made, tmp_path / "w", symlinks=True)
    config = tmp_path / "w" / ".dvc" / "config"
    config.write_text(config.read_text().replace(str(made.parent), str(tmp_path)))
    return tmp_path / "w"


def find(root: Path) -> dict[bytes, TrackedDataset]:
    pins = sorted(os.fsencode(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    return {dataset.path: dataset for dataset in Dvc().find(root, pins)}


def on_disk(root: Path, dataset: TrackedDataset) -> tuple[SourceFile, ...]:
    return pinned_files.below(root, dataset.path) or ()


def without_data(root: Path) -> Path:
    shutil.rmtree(root / "data")
    (root / "one.csv").unlink()
    return root


def contents(files: tuple[SourceFile, ...]) -> dict[bytes, bytes]:
    return {file.path: Path(file.location).read_bytes() for file in files}


EXPECTED = {b"data/a.txt": b"alpha\r\n", "data/sub/ü b.bin".encode(): bytes(range(256)) * 9000}


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "data" / "a.txt").write_bytes(b"alpha\n"),
        lambda root: (root / "data" / "new.txt").write_bytes(b""),
        lambda root: (root / "data" / "a.txt").rename(root / "data" / "b.txt"),
        lambda root: (root / "data" / "a.txt").unlink(),
    ],
)
def test_data_that_differs_from_its_pin_is_an_error_with_a_hint(root: Path, change: Callable[[Path], object]) -> None:
    dataset = find(root)[b"data"]
    os.chmod(root / "data" / "a.txt", 0o644)
    change(root)
    with pytest.raises(DatasetModified, match=r"data\.dvc") as raised:
        Dvc().verify(dataset, on_disk(root, dataset))
    assert "dvc commit data.dvc" in raised.value.hint
    assert "dvc checkout data.dvc" in raised.value.hint


def test_data_is_restored_from_the_dvc_cache(root: Path, tmp_path: Path) -> None:
    without_data(root)
    shutil.rmtree(tmp_path / "remote")
    assert contents(Dvc().fetch(root, find(root)[b"data"], tmp_path / "t")) == EXPECTED


def test_data_of_a_workspace_below_the_dvc_root_is_fetched(root: Path, tmp_path: Path) -> None:
    (root / "ws").mkdir()
    (root / "ws" / "in.txt").write_text("inside")
    dvc(root, "add", "ws/in.txt")
    (root / "ws" / "in.txt").unlink()
    (dataset,) = find(root / "ws").values()
    assert contents(Dvc().fetch(root / "ws", dataset, tmp_path / "t")) == {b"in.txt": b"inside"}


def _damage(place: Path, md5: str) -> None:
    path = place / "files" / "md5" / md5[:2] / md5[2:]
    os.chmod(path, 0o644)
    path.write_bytes(b"9,9\n")


def test_the_remotes_copy_replaces_a_damaged_cache_file(root: Path, tmp_path: Path) -> None:
    dataset = find(without_data(root))[b"one.csv"]
    _damage(root / ".dvc" / "cache", dataset.hash)
    assert contents(Dvc().fetch(root, dataset, tmp_path / "t")) == {b"one.csv": b"1,2\n"}
    _damage(tmp_path / "remote", dataset.hash)
    with pytest.raises(CorruptObject, match=r"one\.csv\.dvc"):
        Dvc().fetch(root, dataset, tmp_path / "u")


def test_a_dvc_list_with_a_path_outside_the_target_is_refused(root: Path, tmp_path: Path) -> None:
    dataset = find(without_data(root))[b"data"]
    path = root / ".dvc" / "cache" / "files" / "md5" / dataset.hash[:2] / dataset.hash[2:]
    rows = json.loads(path.read_bytes())
    rows[0]["relpath"] = "../../../escaped"
    os.chmod(path, 0o644)
    path.write_text(json.dumps(rows))
    with pytest.raises(CorruptObject, match=r"\.\."):
        Dvc().fetch(root, dataset, tmp_path / "deep" / "target")
    assert not list(tmp_path.rglob("escaped"))


def test_outputs_of_a_dvc_pipeline_are_pinned_datasets(root: Path, tmp_path: Path) -> None:
    (root / "stage").mkdir()
    (root / "dvc.yaml").write_text(
        "stages:\n  make:\n    cmd: echo 1 > out.txt; echo 2 > score.json\n    wdir: stage\n"
        "    outs:\n      - out.txt\n      - score.json:\n          cache: false\n"
    )
    dvc(root, "repro")
    files = [b"data.dvc", b"dvc.lock", b"dvc.yaml", b"one.csv.dvc", b"stage/.gitignore", b"stage/score.json"]
    datasets = {dataset.path: dataset for dataset in Dvc().find(root, files)}
    assert sorted(datasets) == [b"data", b"one.csv", b"stage/out.txt"]
    (root / "stage" / "out.txt").unlink()
    assert contents(Dvc().fetch(root, datasets[b"stage/out.txt"], tmp_path / "t")) == {b"stage/out.txt": b"1\n"}


def test_the_executable_bit_comes_from_the_pin(root: Path) -> None:
    (root / "tool").write_text("#!/bin/sh\n")
    os.chmod(root / "tool", 0o755)  # noqa: S103 — the mode under test
    dvc(root, "add", "tool")
    assert find(root)[b"tool"].executable
    assert not find(root)[b"one.csv"].executable


@pytest.mark.parametrize(
    ("pin", "problem"),
    [
        ("outs:\n- md5: abc\n  hash: md5\n  path: ../up\n", "'../up'"),
        ("outs:\n- md5: abc\n  hash: md5\n  path: s3://b/k\n", "'s3://b/k'"),
        ("outs:\n- md5: abc\n  hash: md5\n  path: /abs\n", "'/abs'"),
        ("outs:\n- path: later\n", "md5"),
        ("outs: [", "YAML"),
        ("just text", "DVC"),
    ],
)
def test_unusable_pins_are_refused(tmp_path: Path, pin: str, problem: str) -> None:
    (tmp_path / "x.dvc").write_text(pin)
    with pytest.raises(UnusablePin, match=problem):
        Dvc().find(tmp_path, [b"x.dvc"])
