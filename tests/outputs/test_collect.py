"""Files of an attempt that are not kept: listed by name, or by folder where there are many."""

from pathlib import Path

import pytest

from m5ws.outputs import collect
from m5ws.repository.files import trees
from m5ws.repository.repository import Repository
from m5ws.work.inputs import AttemptInputs
from tests.support.workspace.checkouts import write

_NOTHING = AttemptInputs(begun_ns=0, stamps={})


def test_many_undeclared_files_of_a_folder_are_described_together(tmp_path: Path) -> None:
    work = tmp_path / "work"
    write(work, {f"wandb/run-1/files/{number:02d}.json": "x" for number in range(31)})
    write(work, {"logs/a.txt": "", "logs/b.txt": "", "notes.txt": "", "out/kept.txt": "", "model.pt": ""})
    declared = ("out", "model.pt")
    left = collect.collect(work, declared, _NOTHING)
    (line,) = collect.describe_others(tmp_path, work, declared, {}, left)
    assert line == "written outside [run] outputs: logs/a.txt, logs/b.txt, notes.txt, wandb/ (31 files)"
    assert {file.path for file in left.files} == {b"out/kept.txt", b"model.pt"}


@pytest.mark.parametrize("name", [".git/config", ".m5ws/a", "a/.GIT /b", "d/" * 256 + "f"])
def test_a_file_that_the_store_forbids_is_named_and_blocks_no_other_file(
    tmp_path: Path, repo: Repository, name: str
) -> None:
    write(tmp_path, {f"out/{name}": "x", "out/kept.txt": "", "out/d/kept.txt": ""})
    left = collect.collect(tmp_path, ("out",), _NOTHING)
    assert {file.path for file in left.files} == {b"out/kept.txt", b"out/d/kept.txt"}
    (line,) = left.not_kept
    assert Path("out", name).parts[1] in line and "name or depth" in line
    trees.write_tree(repo.objects, left.files)
