"""Folders with files, and git commands with a fixed author."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_AUTHOR = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files by their paths below `folder`, and make missing folders."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def git(folder: Path, *arguments: str) -> str:
    """Run git in `folder` and return its output. Submodules may be cloned from directories."""
    command = ["git", *_AUTHOR, "-c", "protocol.file.allow=always", *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return os.fsdecode(done.stdout).strip()


def commit_all(folder: Path) -> None:
    """Make a git repository of `folder`, with one commit of all of its files."""
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
