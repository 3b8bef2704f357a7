"""Files that a snapshot refuses: secrets, Git LFS pointers, links to files outside."""

import os
from pathlib import Path

import pytest

from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.secret_scan import SecretsFound
from m5ws.snapshot.inspection import LfsContentMissing, LinksEscapeWorkspace
from tests.support.workspace.captures import SECRET, make_settings, names, take
from tests.support.workspace.checkouts import write


def stored_bytes(repo: Repository) -> bytes:
    return b"".join(repo.store.get(stat.key) for stat in repo.store.list(""))


def test_secrets_are_refused_all_at_once_and_nothing_is_stored(root: Path, repo: Repository) -> None:
    write(root, {"a.py": f"x\ny = '{SECRET}'\n", ".env": "A=1\n", "keys/id_rsa": "x", ".env.example": "A=\n"})
    with pytest.raises(SecretsFound) as raised:
        take(root, repo)
    assert [(found.path, found.line) for found in raised.value.findings] == [
        (".env", 1),
        ("a.py", 2),
        ("keys/id_rsa", 0),
    ]
    assert SECRET not in str(raised.value)
    assert SECRET.encode() not in stored_bytes(repo)
    assert snapshots.ids(repo) == []


def test_secrets_can_be_excluded_or_allowed(root: Path, repo: Repository) -> None:
    write(root, {"a.py": SECRET, "fixtures/.env": "A=1\n"})
    captured = take(root, repo, make_settings(code={"exclude": ["a.py"]}, secrets={"allow": ["fixtures"]}))
    assert "fixtures/.env" in names(repo, captured)["code"]
    assert "a.py" not in names(repo, captured)["code"]


def test_an_allowed_file_is_refused_without_the_setting(root: Path, repo: Repository) -> None:
    write(root, {"a.py": SECRET})
    os.utime(root / "a.py", (1, 1))
    for _ in range(2):
        take(root, repo, make_settings(secrets={"allow": ["a.py"]}))
    for _ in range(2):
        with pytest.raises(SecretsFound):
            take(root, repo)


def test_a_secret_that_is_added_later_is_refused(root: Path, repo: Repository) -> None:
    take(root, repo)
    write(root, {"config.yaml": f"token: {SECRET}\n"})
    with pytest.raises(SecretsFound, match=r"config\.yaml:1"):
        take(root, repo)


@pytest.mark.parametrize(
    "files",
    [
        {"data/.env": b"TOKEN=1\n"},
        {"data/deep/kaggle.json": b"{}"},
        {"data/notes.txt": f"use {SECRET}\n".encode()},
        {"data/notes.txt": f"use {SECRET}\n".encode("utf-16")},
        {"data/id_rsa": bytes(100)},
    ],
)
def test_data_is_searched_by_name_and_small_files_by_content(
    root: Path, repo: Repository, files: dict[str, bytes]
) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    data = {"paths": ["data"]}
    with pytest.raises(SecretsFound) as raised:
        take(root, repo, make_settings(data=data))
    assert [found.path for found in raised.value.findings] == list(files)
    assert all(content not in stored_bytes(repo) for content in files.values())
    for _ in range(2):
        take(root, repo, make_settings(data=data, secrets={"allow": ["data/*"]}))
    for _ in range(2):
        with pytest.raises(SecretsFound):
            take(root, repo, make_settings(data=data))


def test_large_data_is_not_searched(root: Path, repo: Repository) -> None:
    write(root, {"data/corpus.txt": "a line\n" * 10_000 + SECRET})
    take(root, repo, make_settings(data={"paths": ["data"]}))


@pytest.mark.parametrize(
    ("before", "after", "line"), [(0, 3 << 20, 1), (3 << 20, 0, 0), (1 << 20, 1 << 19, 1 + (1 << 19))]
)
def test_large_code_is_searched_at_both_ends(root: Path, repo: Repository, before: int, after: int, line: int) -> None:
    write(root, {"log.txt": "a\n" * (before // 2) + f"{SECRET}\n" + "b\n" * (after // 2)})
    with pytest.raises(SecretsFound) as raised:
        take(root, repo)
    assert [(found.path, found.line) for found in raised.value.findings] == [("log.txt", line)]


def test_code_in_utf_16_is_searched(root: Path, repo: Repository) -> None:
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        (root / "keys.ps1").write_bytes(f"$x = 1\r\n$token = '{SECRET}'\r\n".encode(encoding))
        with pytest.raises(SecretsFound, match=r"keys\.ps1:2"):
            take(root, repo)


def test_pointers_of_git_lfs_are_not_content(root: Path, repo: Repository) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 5\n"
    write(root, {"model.bin": pointer})
    with pytest.raises(LfsContentMissing, match=r"model\.bin"):
        take(root, repo)
    write(root, {"model.bin": "x", "data/a.bin": pointer})
    with pytest.raises(LfsContentMissing, match=r"data/a\.bin"):
        take(root, repo, make_settings(data={"paths": ["data"]}))


def test_links_to_files_outside_are_refused(root: Path, repo: Repository, tmp_path: Path) -> None:
    write(tmp_path, {"outside.py": "x"})
    (root / "out").symlink_to("../outside.py")
    (root / "absolute").symlink_to(root / "train.py")
    (root / "dangling").symlink_to("/nonexistent/x")
    with pytest.raises(LinksEscapeWorkspace) as raised:
        take(root, repo)
    assert str(raised.value).count("->") == 2
    code = names(repo, take(root, repo, make_settings(code={"exclude": ["absolute", "out"]})))["code"]
    assert code == [".gitignore", "bin/go", "dangling", "latest", "train.py"]
