"""Files that a command names and that the snapshot lacks are named before the launch."""

from pathlib import Path

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


def test_other_words_are_not_named(repo: Repository, tmp_path: Path) -> None:
    assert (
        _named(repo, tmp_path, "--data", "absent", "out", "out/old.txt", "..", ".", "", "/etc", ".m5ws/index", "-")
        == []
    )
