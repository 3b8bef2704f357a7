"""Parts of a snapshot: each file is in exactly one. And the declared environment."""

from pathlib import Path

import pytest

from m5ws.errors import ConfigError, M5Error, NotFound
from m5ws.repository.files import trees
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot.config.edit import BadConfigFile
from tests.support.workspace.captures import make_settings, names, take
from tests.support.workspace.checkouts import write


def test_every_file_is_in_exactly_one_part(root: Path, repo: Repository) -> None:
    settings = make_settings(
        tokenizer={"path": "data/tok"},
        data={"paths": ["data", "other.bin"]},
        config={"files": ["conf/*.yaml", "config.yaml"]},
    )
    write(root, {"data/tok/vocab.json": "{}", "data/a.log": "a", "data/config.yaml": "x: 1"})
    write(root, {"other.bin": "b", "conf/a.yaml": "a: 1", "conf/deep/b.yaml": "b: 1"})
    assert names(repo, take(root, repo, settings)) == {
        "code": [".gitignore", "bin/go", "conf/deep/b.yaml", "latest", "train.py"],
        "config": ["conf/a.yaml", "config.yaml"],
        "tokenizer": ["data/tok/vocab.json"],
        "data:data": ["data/a.log", "data/config.yaml"],
        "data:other.bin": ["other.bin"],
    }


def test_a_config_file_ignored_by_git_is_captured_if_configured(root: Path, repo: Repository) -> None:
    write(root, {"local.log": "", "real.yaml": "a: 1\n"})
    (root / "link.yaml").symlink_to("real.yaml")
    captured = take(root, repo, make_settings(config={"files": ["local.log", "link.yaml"]}))
    (link, local) = trees.load(repo.objects, captured.snapshot.config).entries
    assert (link.name, link.mode, local.name) == ("link.yaml", "file", "local.log")
    with pytest.raises(NotFound, match=r"absent\.yaml"):
        take(root, repo, make_settings(config={"files": ["absent.yaml"]}))


def test_the_default_config_file_may_be_absent(root: Path, repo: Repository) -> None:
    (root / "config.yaml").unlink()
    assert "config" not in names(repo, take(root, repo))


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("c.yaml", "a: 1\nb: [1\nc: 2\n", 3),
        ("c.yaml", "a: 1\na: 2\n", 2),
        ("c.json", '{\n"a": 1,\n"b"}', 3),
        ("c.json", '{\n"a": 1,\n"a": 2}', 3),
        ("c.toml", "a = 1\nb = = 2\n", 2),
        ("c.yaml", b"a: 1\nb: \xff\n", 2),
    ],
)
def test_a_config_file_that_is_not_valid_is_named_with_its_line(
    root: Path, repo: Repository, name: str, content: str | bytes, line: int
) -> None:
    write(root, {name: content})
    with pytest.raises(BadConfigFile, match=rf"^{name}:{line}: "):
        take(root, repo, make_settings(config={"files": [name]}))
    assert snapshots.ids(repo) == []


def test_data_ignored_by_git_is_pinned_and_links_are_followed(root: Path, repo: Repository, tmp_path: Path) -> None:
    write(tmp_path / "disk", {"a.log": "1", "deep/b": "2"})
    (root / "data").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "again").symlink_to("deep")
    captured = take(root, repo, make_settings(data={"paths": ["./data/"]}))
    (dataset,) = captured.snapshot.datasets
    assert (dataset.name, dataset.kind, dataset.size_bytes) == ("data", "files", 3)
    assert names(repo, captured)["data:data"] == ["data/a.log", "data/again/b", "data/deep/b"]
    assert "data" not in names(repo, captured)["code"]


def test_data_that_is_missing_or_named_twice_is_an_error(root: Path, repo: Repository) -> None:
    with pytest.raises(NotFound, match="'data'"):
        take(root, repo, make_settings(data={"paths": ["data"]}))
    write(root, {"data/x/y": ""})
    with pytest.raises(ConfigError, match=r"'data/x'.* 'data'"):
        take(root, repo, make_settings(data={"paths": ["data", "data/x"]}))
    (root / "data" / "x" / "loop").symlink_to("..")
    with pytest.raises(M5Error, match="data/x/loop"):
        take(root, repo, make_settings(data={"paths": ["data"]}))


def test_the_declared_environment_is_part_of_the_snapshot(root: Path, repo: Repository) -> None:
    write(root, {"uv.lock": "x"})
    settings = make_settings(
        environment={"image": "x@sha256:1", "wanted": {"nccl": "2.26"}}, determinism={"threads": 3}
    )
    captured = take(root, repo, settings)
    assert (list(captured.snapshot.declared.locks), captured.snapshot.declared.wanted) == (
        ["uv.lock"],
        {"nccl": "2.26"},
    )
    assert captured.snapshot.determinism.threads == 3
