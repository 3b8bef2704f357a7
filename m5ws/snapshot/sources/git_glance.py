"""Whether a working tree is as it was, from what git keeps of it: no file is named, and none is asked by us.

Git's index says what each tracked file was like when git last looked: size, owner, inode, and the seconds of mtime
and ctime. `git diff-files` names every file that is not like that any more, without reading it. So an equal index and
equal answers mean equal files, for all that was written in an earlier second than the index: any later change gives a
file another ctime, which nobody can set. What git does not vouch for (files that differ, untracked ones) is asked for
its stamp here (https://git-scm.com/docs/git-diff-files, https://git-scm.com/docs/racy-git).
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from m5ws.snapshot.sources import git_start
from m5ws.snapshot.sources.interface import Glance


def begin(root: Path, environment: Mapping[str, str]) -> Callable[[], Glance | None]:
    """Have git look at the working tree at `root`, a real path, and return what waits for it.

    That is None on an unborn branch, and if git fails. Raises GitError if there is no git.
    """
    try:
        return partial(_ended, git_start.look(os.fspath(root), environment))
    except FileNotFoundError:
        return lambda: None


def _ended(looking: git_start.Looking) -> Glance | None:
    found = looking.said()
    return None if found is None else Glance(said=found[0], indexed_ns=found[1])
