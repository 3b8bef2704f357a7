"""Finished runs as a start for many tests: each is trained once in a session, and handed out as copies."""

import fcntl
import os
import shutil
from pathlib import Path

from tests.support.workspace.workspaces import Workspace, make_workspace

_TRAINERS = {"fsdp": "torchrun", "zero": "deepspeed"}


class BaseRuns:
    """Runs of 10 steps with checkpoints after 4, 8 and 10, by script and number of ranks. Workers share the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def copy(self, kind: str, ranks: int, to: Path) -> tuple[Workspace, str]:
        """Return a copy of such a run's workspace, and the run's id."""
        made = self._folder / f"{kind}-{ranks}"
        with made.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            told = made / "id"
            if not told.exists():
                workspace = make_workspace(made / "w", f"{kind}.py", trainer=_TRAINERS[kind], nproc=ranks)
                told.write_text(workspace.train())
        shutil.copytree(made / "w", to / "w", symlinks=True, copy_function=_copied)
        return Workspace(to / "w"), told.read_text()


def _copied(source: str, target: str) -> None:
    """Link files of a store, which never change; copy all other files, which tests edit."""
    if "/.m5ws/store/" in source:
        os.link(source, target)
    else:
        shutil.copy2(source, target)
