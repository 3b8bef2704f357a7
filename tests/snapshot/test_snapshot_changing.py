"""A workspace that changes while it is captured."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from m5ws.repository.files import trees
from m5ws.repository.files.writer import FileChanged
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot.sources.git import Git
from m5ws.snapshot.sources.interface import SourceState
from tests.support.workspace.captures import make_settings, take
from tests.support.workspace.checkouts import git, write


class Meddling(Git):
    """Git beside a program that writes to `path` before the looks with the given numbers."""

    def __init__(self, path: Path, looks: Sequence[int]) -> None:
        super().__init__()
        self._path, self._looks, self.look = path, looks, 0

    def state(self, root: Path) -> SourceState:
        self.look += 1
        if self.look in self._looks:
            self._path.write_text(f"look {self.look}\n")
        return super().state(root)


@pytest.mark.parametrize("name", ["train.py", "config.yaml", "tok/vocab", "data/x", "brand-new.py"])
def test_a_file_that_changes_during_a_capture_is_captured_again(root: Path, repo: Repository, name: str) -> None:
    write(root, {"tok/vocab": "v", "data/x": "x"})
    settings = make_settings(tokenizer={"path": "tok"}, data={"paths": ["data"]})
    source = Meddling(root / name, [2])
    captured = take(root, repo, settings, source=source)
    assert source.look == 4
    assert captured.id == take(root, repo, settings).id
    entries = {
        entry.name: entry
        for tree in captured.snapshot.trees.values()
        for entry in trees.load(repo.objects, tree).entries
    }
    assert trees.read_file(repo.objects, entries[name]) == b"look 2\n"


def test_a_file_that_keeps_changing_is_an_error_and_nothing_is_published(root: Path, repo: Repository) -> None:
    with pytest.raises(FileChanged, match="workspace"):
        take(root, repo, source=Meddling(root / "train.py", [2, 4, 6, 8]))
    assert snapshots.ids(repo) == []


def test_a_commit_during_a_capture_is_recorded_in_the_snapshot(root: Path, repo: Repository) -> None:
    class Committing(Git):
        looks = 0

        def state(self, root: Path) -> SourceState:
            self.looks += 1
            if self.looks == 2:
                git(root, "commit", "-q", "--allow-empty", "-m", "meanwhile")
            return super().state(root)

    captured = take(root, repo, source=Committing())
    assert captured.snapshot.code.commit == Git().state(root).commit
