"""Differences of trees, checked by git itself: applying a shown patch gives the other side."""

import os
import subprocess
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from m5ws.diff import trees as tree_diff
from m5ws.records.base import Digest
from m5ws.repository.files import trees
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore

File = tuple[str, bytes]

names = st.sampled_from([b"a.py", b"b b.txt", "naïve.md".encode(), b'q"uote', b"tab\there", b"folder/c.py", b"bad\xff"])
contents = st.one_of(
    st.text("ab\n\r\x0c ", max_size=12).map(str.encode),
    st.lists(st.sampled_from(["x\n", "y\n", "long line\n"]), max_size=30).map(lambda lines: "".join(lines).encode()),
)
files = st.one_of(
    st.tuples(st.just("file"), contents),
    st.tuples(st.just("exec"), contents),
    st.tuples(st.just("link"), st.sampled_from([b"target", b"other/target"])),
)
states = st.dictionaries(names, files, max_size=4)


def write(root: Path, state: dict[bytes, File]) -> None:
    for path, (mode, content) in state.items():
        target = os.path.join(os.fsencode(root), path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if mode == "link":
            os.symlink(content, target)
        else:
            with open(target, "wb") as file:
                file.write(content)
            os.chmod(target, 0o755 if mode == "exec" else 0o644)


def capture(repo: Repository, root: Path, state: dict[bytes, File]) -> Digest:
    write(root, state)
    sources = [
        SourceFile(path=path, location=Path(os.fsdecode(os.path.join(os.fsencode(root), path)))) for path in state
    ]
    return trees.write_tree(repo.objects, sources).digest


def read(root: Path) -> dict[bytes, File]:
    files: dict[bytes, File] = {}
    for folder, _, paths in os.walk(os.fsencode(root)):
        for name in paths:
            path = os.path.join(folder, name)
            key = os.path.relpath(path, os.fsencode(root))
            if os.path.islink(path):
                files[key] = ("link", os.readlink(path))
            else:
                with open(path, "rb") as file:
                    files[key] = ("exec" if os.stat(path).st_mode & 0o100 else "file", file.read())
    return files


@settings(max_examples=25)
@given(states, states)
def test_the_diff_applied_by_git_gives_the_new_tree(old: dict[bytes, File], new: dict[bytes, File]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        repo = Repository.create(LocalStore(root / "store"))
        before, after = capture(repo, root / "old", old), capture(repo, root / "new", new)
        (root / "old").mkdir(exist_ok=True)
        pairs = tree_diff.different(repo, before, after)
        patch = "".join(tree_diff.patch(repo, pair) for pair in pairs)
        if patch:
            command = ["git", "apply", "--whitespace=nowarn", "-"]
            done = subprocess.run(command, cwd=root / "old", input=patch.encode(), capture_output=True, check=False)
            assert done.returncode == 0, (done.stderr, patch)
        assert read(root / "old") == new


@settings(max_examples=10)
@given(states)
def test_a_tree_does_not_differ_from_itself(state: dict[bytes, File]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        repo = Repository.create(LocalStore(root / "store"))
        digest = capture(repo, root / "files", state)
        assert tree_diff.different(repo, digest, digest) == []
        added = tree_diff.different(repo, None, digest)
        assert [pair.path for pair in added] == sorted(state)


def test_equal_trees_are_not_read(repo: Repository) -> None:
    assert tree_diff.different(repo, "0" * 64, "0" * 64) == []


def test_binary_and_large_files_are_noted(repo: Repository, tmp_path: Path) -> None:
    big = b"line\n" * 200_000
    old = capture(repo, tmp_path / "old", {b"b": ("file", b"\0\1"), b"l": ("file", big), b"u": ("file", b"\xff")})
    new = capture(repo, tmp_path / "new", {b"b": ("file", b"\0\1\2"), b"l": ("file", big + b"x"), b"u": ("file", b"u")})
    shown = [tree_diff.patch(repo, pair) for pair in tree_diff.different(repo, old, new)]
    assert shown[0].endswith("binary: 2 bytes → 3 bytes\n")
    assert shown[1].endswith("too large to show: 1000000 bytes → 1000001 bytes\n")
    assert shown[2].endswith("binary: 1 bytes → 1 bytes\n")
