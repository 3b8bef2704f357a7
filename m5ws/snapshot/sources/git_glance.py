"""Fingerprint of a working tree from git's index, without a list of its unchanged files.

Git's index has the size, owner, inode, and the seconds of mtime and ctime of each tracked file. `git diff-files` names
every file that differs from it, without reading content. So an equal index and equal output mean equal files, if they
were written in an earlier second than the index: each later change sets another ctime, which no program can choose.
Files that differ and untracked files are stamped here (https://git-scm.com/docs/git-diff-files,
https://git-scm.com/docs/racy-git).
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from m5ws.snapshot.sources import git_start
from m5ws.snapshot.sources.interface import Glance


def begin(root: Path, environment: Mapping[str, str]) -> Callable[[], Glance | None]:
    """Start a glance at the working tree at `root`, a real path, and return a function that waits for it.

    The function returns None on an unborn branch, or if git fails. Raises GitError if git is not installed.
    """
    try:
        return partial(_result, git_start.start(os.fspath(root), environment))
    except FileNotFoundError:
        return lambda: None


def _result(processes: git_start.GlanceProcesses) -> Glance | None:
    result = processes.result()
    return None if result is None else Glance(outputs=result[0], indexed_ns=result[1])
