"""Files that a command names and that the snapshot lacks are named before the launch."""

import os
from pathlib import Path

import pytest

from m5ws.errors import UsageError
from m5ws.repository.repository import Repository
from m5ws.runs import named_files
from tests.support.records import planted
from tests.support.workspace.checkouts import write


def _named(repo: Repository, tmp_path: Path, *arguments: str) -> list[str]:
    root = tmp_path / "w"
    snapshot = planted.snapshot(planted.tree(repo, root, {"train.py": "", "conf/base.yaml": ""}))
    write(root, {"data/a.txt": "", "out/old.txt": "", ".m5ws/index": ""})
    command = ("train.py", *(argument.replace("ROOT", str(root)) for argument in arguments))
    lines = named_files.warnings(repo, snapshot, command, root, ["./out"])
    return [line.partition(" ")[0].replace(str(root), "ROOT") for line in lines]


def test_existing_paths_that_the_snapshot_lacks_are_named(repo: Repository, tmp_path: Path) -> None:
    assert _named(repo, tmp_path, "data", "--file=data/a.txt", "--also", "data/a.txt", "ROOT/data/") == [
        "data",
        "data/a.txt",
        "ROOT/data/",
    ]


def test_an_absolute_path_is_named_although_the_snapshot_has_a_copy(repo: Repository, tmp_path: Path) -> None:
    assert _named(repo, tmp_path, "conf/base.yaml", "ROOT/conf", "conf") == ["ROOT/conf"]


def test_paths_above_the_work_directory_are_named(repo: Repository, tmp_path: Path) -> None:
    assert _named(repo, tmp_path, "../results", "--out=data/../../x", "..", "../..") == ["../results", "data/../../x"]


def test_other_words_are_not_named(repo: Repository, tmp_path: Path) -> None:
    assert (
        _named(repo, tmp_path, "--data", "absent", "out", "out/old.txt", "..", ".", "", "/etc", ".m5ws/index", "-")
        == []
    )


@pytest.mark.parametrize(
    ("script", "suggested"),
    [
        ("trian.py", "train.py"),
        ("eval.py", "exp/eval.py"),
        ("../train.py", "train.py"),
        ("ROOT/exp/eval.py", "exp/eval.py"),
        ("other.py", None),
        ("srun", None),
    ],
)
def test_a_missing_script_is_refused_with_similar_ones(
    repo: Repository, tmp_path: Path, script: str, suggested: str | None
) -> None:
    root = tmp_path / "w"
    snapshot = planted.snapshot(planted.tree(repo, root, {"train.py": "", "exp/eval.py": "", "run.py": ""}))
    with pytest.raises(UsageError) as refused:
        named_files.refuse_missing_script(repo, snapshot, (script.replace("ROOT", str(root)),), root, {})
    hint = refused.value.hint
    assert f"mean {suggested}?" in hint if suggested is not None else "mean" not in hint
    for command in (
        ("./train.py",),
        ("torchrun", "train.py"),
        ("-m", "anything"),
        ("sh", "-c", "true"),
        ("./run.py", "x"),
    ):
        named_files.refuse_missing_script(repo, snapshot, command, root, dict(os.environ))
