"""Files that are rarely meant as code are named before they are stored."""

import os
from pathlib import Path

import pytest

from m5ws.repository.repository import Repository
from m5ws.snapshot import unintended
from tests.support.workspace import captures
from tests.support.workspace.checkouts import commit_all, write


def _named(root: Path, repo: Repository) -> list[str]:
    taken = captures.take(root, repo, dry_run=True)
    assert all(".gitignore" in line for line in taken.warnings)
    return [line.partition(" is captured")[0] for line in taken.warnings]


def test_a_warning_names_untracked_files_and_no_tracked_or_ignored_files(
    root: Path, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unintended, "LARGE_BYTES", 1000)
    monkeypatch.setattr(unintended, "MANY", 3)
    write(root, {"large.bin": "x" * 2000, "env/tracked.py": "", "src/a.py": "", "src/b.py": "", "src/c.py": ""})
    commit_all(root)
    assert _named(root, repo) == []
    write(
        root,
        {
            "model.bin": "x" * 2000,
            "small.bin": "x",
            "env/pyvenv.cfg": "home = /usr/bin",
            "env/lib/a.py": "",
            "env/lib/b.so": "x" * 2000,
            "src/d.py": "",
            "src/weights.bin": "x" * 2000,
            "ignored/model.bin": "x" * 2000,
        },
    )
    with (root / ".gitignore").open("a") as file:
        file.write("\n/ignored/\n")
    assert _named(root, repo) == ["model.bin", "src/weights.bin", "env/"]


def test_every_file_counts_without_a_commit(tmp_path: Path, repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unintended, "MANY", 2)
    write(tmp_path / "plain", {"wandb/run-1/a.txt": "", "wandb/run-2/a.txt": "", "train.py": ""})
    assert _named(tmp_path / "plain", repo) == ["wandb/"]


def test_the_output_file_of_this_process_is_named(root: Path, repo: Repository) -> None:
    kept = os.dup(1)
    try:
        with (root / "log.txt").open("w") as log:
            os.dup2(log.fileno(), 1)
        assert _named(root, repo) == ["log.txt"]
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def test_a_warning_is_given_once_although_a_capture_is_repeated(
    root: Path, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unintended, "MANY", 1)
    write(root, {"wandb/run-1/a.txt": ""})
    lines: list[str] = []
    taken = captures.take(root, repo, warn=lines.append)
    assert len(lines) == len(taken.warnings) == 1
