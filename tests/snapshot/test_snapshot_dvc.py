"""DVC's datasets in a snapshot: from the working tree, the cache, the remote or the store."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from m5ws.errors import NotFound
from m5ws.repository.files import trees
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.materialise import materialise
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot.snapshot import CapturedSnapshot
from m5ws.snapshot.sources.dvc import DatasetModified, Dvc
from m5ws.snapshot.sources.interface import TrackedDataset
from m5ws.store.local import LocalStore
from tests.support.faults.settling import settle
from tests.support.workspace import captures
from tests.support.workspace.checkouts import git

pytest.importorskip("dvc")

PROJECT = Path(__file__).parents[2]


class Counting(Dvc):
    """DVC with counts of its expensive calls."""

    fetched = 0
    verified = 0

    def fetch(self, root: Path, dataset: TrackedDataset, target: Path) -> tuple[SourceFile, ...]:
        self.fetched += 1
        return super().fetch(root, dataset, target)

    def verify(self, dataset: TrackedDataset, files: Sequence[SourceFile]) -> None:
        self.verified += 1
        super().verify(dataset, files)


def run(folder: Path, *command: str) -> None:
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(folder.parent / "site")}
    subprocess.run(command, cwd=folder, check=True, env=environment, capture_output=True)


def dvc(folder: Path, *arguments: str) -> None:
    run(folder, sys.executable, "-m", "dvc", *arguments, "-q")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in git with the folder `data` tracked by DVC and pushed to `../remote`, and nothing else."""
    root = tmp_path_factory.mktemp("made") / "w"
    (root / "data" / "sub").mkdir(parents=True)
    (root / "data" / "a.txt").write_text("alpha")
    (root / "data" / "run.sh").write_text("#!/bin/sh\n")
    (root / "data" / "run.sh").chmod(0o755)
    (root / "data" / "sub" / "b.bin").write_bytes(bytes(range(256)) * 6000)
    git(root, "init", "-q", "-b", "main")
    dvc(root, "init")
    dvc(root, "remote", "add", "-d", "near", "../remote")
    dvc(root, "add", "data")
    dvc(root, "push")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "data")
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made.parent, tmp_path / "place", symlinks=True)
    return tmp_path / "place" / "w"


@pytest.fixture
def clone(root: Path) -> Path:
    """A clone beside `root`: pins, and neither data nor cache."""
    git(root.parent, "clone", "-q", "w", "clone")
    return root.parent / "clone"


def take(root: Path, repo: Repository, dvc: Dvc | None = None, **sections: Mapping[str, object]) -> CapturedSnapshot:
    return captures.take(root, repo, captures.make_settings(**sections), datasets=dvc or Dvc())


def test_a_dataset_is_pinned_by_both_hashes(root: Path, repo: Repository) -> None:
    captured = take(root, repo)
    (dataset,) = captured.snapshot.datasets
    pin = (root / "data.dvc").read_text()
    assert (dataset.name, dataset.kind, dataset.size_bytes) == ("data", "dvc", 5 + 10 + 256 * 6000)
    assert dataset.hash is not None
    assert dataset.hash in pin
    entries = trees.load(repo.objects, dataset.tree).entries
    assert [(entry.name, entry.mode) for entry in entries] == [
        ("data/a.txt", "file"),
        ("data/run.sh", "file"),
        ("data/sub/b.bin", "file"),
    ]
    code = [entry.name for entry in trees.load(repo.objects, captured.snapshot.code.tree).entries]
    assert code == [".dvc/.gitignore", ".dvc/config", ".dvcignore", ".gitignore", "data.dvc"]


def test_a_clone_that_has_not_pulled_gets_the_same_snapshot(root: Path, clone: Path, repo: Repository) -> None:
    second_repo = Repository.create(LocalStore(root.parent / "second-store"))
    fetched = take(clone, second_repo)
    assert fetched.id == take(root, repo).id
    assert not (clone / "data").exists()
    materialise(
        second_repo.objects, [trees.load(second_repo.objects, fetched.snapshot.datasets[0].tree)], root.parent / "out"
    )
    assert (root.parent / "out" / "data" / "sub" / "b.bin").read_bytes() == bytes(range(256)) * 6000


@pytest.mark.parametrize("link", ["symlink", "hardlink"])
def test_the_link_type_of_the_dvc_cache_does_not_change_the_snapshot(root: Path, repo: Repository, link: str) -> None:
    before = take(root, repo).id
    git(root, "config", "core.excludesFile", "/dev/null")
    (root / ".dvc" / "config.local").write_text(f"[cache]\n    type = {link}\n")
    dvc(root, "checkout", "--relink")
    assert take(root, repo).id == before


def test_an_unchanged_dataset_is_verified_once_and_never_fetched(root: Path, repo: Repository) -> None:
    settle(root)
    counting = Counting()
    for _ in range(3):
        take(root, repo, counting)
    assert (counting.fetched, counting.verified) == (0, 1)


def test_a_stored_dataset_is_not_fetched(root: Path, clone: Path, repo: Repository) -> None:
    first = take(root, repo)
    shutil.rmtree(root.parent / "remote")
    counting = Counting()
    second = take(clone, repo, counting)
    assert (second.id, second.files, second.size_bytes) == (first.id, first.files, first.size_bytes)
    assert (counting.fetched, counting.verified) == (0, 0)


def test_a_dataset_with_lost_objects_is_fetched_again(
    root: Path, clone: Path, repo: Repository, store: LocalStore
) -> None:
    first = take(root, repo)
    entries = trees.load(repo.objects, first.snapshot.datasets[0].tree).entries
    lost = entries[-1].parts[0].object
    (store.root / "objects" / lost[:2] / lost).unlink()
    counting = Counting()
    assert take(clone, repo, counting).id == first.id
    assert counting.fetched == 1
    assert repo.objects.has(lost)


def test_a_modified_dataset_is_refused_until_dvc_commit(root: Path, repo: Repository) -> None:
    take(root, repo)
    (root / "data" / "a.txt").chmod(0o644)
    (root / "data" / "a.txt").write_text("omega")
    with pytest.raises(DatasetModified, match=r"data\.dvc"):
        take(root, repo)
    assert len(snapshots.ids(repo)) == 1
    dvc(root, "commit", "-f", "data.dvc")
    take(root, repo)
    assert len(snapshots.ids(repo)) == 2


def test_a_snapshot_with_missing_data_is_not_published(clone: Path, repo: Repository) -> None:
    shutil.rmtree(clone.parent / "remote")
    with pytest.raises(NotFound, match=r"\.dvc\b.*remote"):
        take(clone, repo)
    assert snapshots.ids(repo) == []


def test_a_dataset_linked_into_a_missing_cache_is_fetched(root: Path, repo: Repository) -> None:
    before = take(root, repo).id
    (root / ".dvc" / "config.local").write_text("[cache]\n    type = symlink\n")
    dvc(root, "checkout", "--relink")
    shutil.rmtree(root / ".dvc" / "cache")
    assert take(root, repo).id == before


def test_a_tokenizer_tracked_by_dvc_is_pinned_and_verified(root: Path, clone: Path, repo: Repository) -> None:
    """The tokenizer has its files, the rest stays a dataset, and all files are verified."""
    settings = {"path": "data/sub"}
    captured, fetched = take(root, repo, tokenizer=settings), take(clone, repo, tokenizer=settings)
    assert captured.id == fetched.id
    assert captured.snapshot.tokenizer is not None
    names = {part: [e.name for e in trees.load(repo.objects, t).entries] for part, t in captured.snapshot.trees.items()}
    assert (names["tokenizer"], names["data:data"]) == (["data/sub/b.bin"], ["data/a.txt", "data/run.sh"])
    (root / "data" / "sub" / "b.bin").chmod(0o644)
    (root / "data" / "sub" / "b.bin").write_bytes(b"other")
    with pytest.raises(DatasetModified):
        take(root, repo, tokenizer=settings)


def test_a_data_path_inside_a_dvc_dataset_is_pinned_only_by_dvc(root: Path, repo: Repository) -> None:
    (root / "more").mkdir()
    (root / "more" / "x").write_text("x")
    captured = take(root, repo, data={"paths": ["data/sub", "more"]})
    assert [(dataset.name, dataset.kind) for dataset in captured.snapshot.datasets] == [
        ("data", "dvc"),
        ("more", "files"),
    ]


def test_without_git_the_cache_is_not_captured(root: Path, repo: Repository) -> None:
    shutil.rmtree(root / ".git")
    captured = take(root, repo)
    code = [entry.name for entry in trees.load(repo.objects, captured.snapshot.code.tree).entries]
    assert code == [".dvc/.gitignore", ".dvc/config", ".dvcignore", ".gitignore", "data.dvc"]
    assert [dataset.name for dataset in captured.snapshot.datasets] == ["data"]


def test_the_sample_data_of_this_project_is_fetched_from_its_remote(tmp_path: Path, repo: Repository) -> None:
    """A fresh clone of this project contains the pin, and the remote with its data in a folder."""
    origin = tmp_path / "origin"
    for name in (
        ".dvc/config",
        ".dvc/.gitignore",
        ".dvcignore",
        "tests/data/.gitignore",
        "tests/data/gettysburg.txt.dvc",
    ):
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, origin / name)
    shutil.copytree(PROJECT / "tests" / "data" / "dvc-remote", origin / "tests" / "data" / "dvc-remote")
    git(origin, "init", "-q")
    git(origin, "add", ".")
    git(origin, "commit", "-q", "-m", "sample data")
    git(tmp_path, "clone", "-q", "origin", "clone")
    assert not (tmp_path / "clone" / "tests" / "data" / "gettysburg.txt").exists()
    captured = take(tmp_path / "clone", repo)
    (dataset,) = captured.snapshot.datasets
    (entry,) = trees.load(repo.objects, dataset.tree).entries
    assert (dataset.name, dataset.hash) == ("tests/data/gettysburg.txt", "f2f1343e7d4788e45bc7fcf5c4ac8bdd")
    assert trees.read_file(repo.objects, entry).startswith(b"Four score and seven years ago")
