"""Changes of a workspace between two captures, and a workspace to change.

Every change must be detected, also a change with the same number of bytes and the old time.
"""

import os
from collections.abc import Callable
from pathlib import Path

from tests.support.workspace.checkouts import git, write

FILES: dict[str, str | bytes] = {
    "train.py": "print(1)\n",
    "config.yaml": "lr: 1\n",
    "conf/a.yaml": "a: 1\n",
    "lib/a.py": "a = 1\n",
    "plain.txt": "a\nb\n",
    ".gitattributes": "*.txt text\n",
    ".gitignore": "*.log\nlocal.yaml\n/data\n",
}


def make(root: Path, change: str) -> None:
    """Make a workspace for `change`: two commits, untracked files, ignored config and data."""
    write(root, FILES)
    (root / "latest").symlink_to("lib/a.py")
    git(root, "init", "-q", "-b", "main")
    git(root, "commit", "-q", "--allow-empty", "-m", "nothing")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    write(root, {"draft.py": "d = 1\n", "local.yaml": "lr: 1\n", "data/x.bin": "x", "elsewhere.log": "b: 1\n"})
    if change == "a config file behind a link":
        (root / "local.yaml").unlink()
        (root / "local.yaml").symlink_to("elsewhere.log")


def quietly(path: Path, content: bytes) -> None:
    """Write the same number of bytes, and restore the modification time."""
    status = path.stat()
    assert len(content) == status.st_size
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _replaced(path: Path, content: bytes) -> None:
    status = path.stat()
    new = path.with_name("other")
    new.write_bytes(content)
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    new.replace(path)


def then(*steps: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for step in steps:
            step(root)

    return change


def _add(root: Path) -> None:
    git(root, "add", ".")


def _config(name: str, value: str) -> Callable[[Path], object]:
    return lambda root: git(root, "config", name, value)


def _link(name: str, target: str) -> Callable[[Path], object]:
    return lambda root: (root / name).symlink_to(target)


def _unlink(name: str) -> Callable[[Path], object]:
    return lambda root: (root / name).unlink()


def write_text(name: str, content: str) -> Callable[[Path], object]:
    return lambda root: write(root, {name: content})


def as_long(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda root: quietly(root / name, content)


def _git(*arguments: str) -> Callable[[Path], object]:
    return lambda root: git(root, *arguments)


_LOOK_AWAY = {"checkStat": "minimal", "trustctime": "false", "ignoreStat": "true", "fileMode": "false"}
CHANGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda root: None,
    "a line": write_text("train.py", "print(22)\n"),
    "a byte, with the old time": as_long("train.py", b"print(2)\n"),
    "a byte, of a file in a folder": as_long("lib/a.py", b"b = 1\n"),
    "another file with the old time": lambda root: _replaced(root / "train.py", b"print(3)\n"),
    "touched": lambda root: (root / "train.py").touch(),
    "line ends that a filter hides from git": lambda root: (root / "plain.txt").write_bytes(b"a\r\nb\r\n"),
    "a mode": lambda root: (root / "train.py").chmod(0o755),
    "a file less": _unlink("train.py"),
    "another name": lambda root: (root / "train.py").rename(root / "main.py"),
    "a file more": write_text("lib/new.py", "x"),
    "an untracked file, as long": as_long("draft.py", b"d = 2\n"),
    "an untracked file less": _unlink("draft.py"),
    "a link to elsewhere": then(_unlink("latest"), _link("latest", "train.py")),
    "a link instead of a file": then(_unlink("train.py"), _link("train.py", "lib/a.py")),
    "a folder instead of a file": then(_unlink("train.py"), write_text("train.py/x.py", "1")),
    "a rule to ignore": write_text(".gitignore", "*.log\nlocal.yaml\n/data\ndraft.py\n"),
    "a rule less": write_text(".gitignore", "*.log\n/data\n"),
    "a rule of this clone's": write_text(".git/info/exclude", "draft.py\n"),
    "an ignored config file": as_long("local.yaml", b"lr: 2\n"),
    "a config file behind a link": as_long("elsewhere.log", b"b: 2\n"),
    "a config file more": write_text("conf/b.yaml", "b: 1\n"),
    "data, as long": as_long("data/x.bin", b"y"),
    "data more": write_text("data/deep/z.bin", "z"),
    "staged": then(write_text("train.py", "print(4)\n"), _add),
    "staged, then back": then(write_text("train.py", "print(5)\n"), _add, write_text("train.py", "print(1)\n")),
    "no more tracked": _git("rm", "-q", "--cached", "train.py"),
    "about to be added": _git("add", "-N", "draft.py"),
    "committed": then(write_text("train.py", "print(6)\n"), _git("commit", "-qam", "second")),
    "a commit of nothing": _git("commit", "-q", "--allow-empty", "-m", "second"),
    "another branch": _git("checkout", "-q", "-b", "topic"),
    "back by one commit": _git("reset", "-q", "--soft", "HEAD~1"),
    "no branch": _git("checkout", "-q", "--detach"),
    "another remote": _git("remote", "add", "origin", "https://example.org/a.git"),
    "a repository within": then(write_text("inner/a.py", "1"), lambda root: git(root / "inner", "init", "-q")),
    "assumed unchanged": then(
        _git("update-index", "--assume-unchanged", "train.py"), as_long("train.py", b"print(7)\n")
    ),
    "skipped in the worktree": then(
        _git("update-index", "--skip-worktree", "train.py"), as_long("train.py", b"print(9)\n")
    ),
    "a submodule": then(
        _git("clone", "-q", ".", "other"),
        _git("-c", "protocol.file.allow=always", "submodule", "add", "-q", "./other", "sub"),
    ),
    "an unborn branch": _git("checkout", "-q", "--orphan", "unborn"),
    "git told to look away": then(
        *(_config(f"core.{name}", value) for name, value in _LOOK_AWAY.items()), as_long("train.py", b"print(8)\n")
    ),
    "a mode, and git told to look away": then(
        *(_config(f"core.{name}", value) for name, value in _LOOK_AWAY.items()),
        lambda root: (root / "lib" / "a.py").chmod(0o755),
    ),
    "a dataset that DVC tracks": lambda root: write(root, {"set.dvc": _PIN, "set": "hello world"}),
    "no index": _unlink(".git/index"),
}
_PIN = "outs:\n- md5: 5eb63bbbe01eeed093cb22bb8f5acdc3\n  path: set\n  hash: md5\n"
_OTHER_WORDS = {"another branch", "another remote", "no branch"}
THE_SAME = {
    "nothing",
    "touched",
    "staged, then back",
    "no more tracked",
    "about to be added",
    "no index",
    *_OTHER_WORDS,
}
