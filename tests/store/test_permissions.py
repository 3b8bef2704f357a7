"""The lock under which a folder of a store is made."""

import os
import signal
from pathlib import Path

import pytest

from m5ws import locks
from m5ws.store import permissions


def test_a_child_forked_while_a_folder_is_made_does_not_keep_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the workers of a DataLoader, forked while a thread saves a checkpoint."""
    make, children = permissions._make, []

    def fork_and_make(folder: Path, root: os.stat_result) -> None:
        if (child := os.fork()) == 0:
            signal.pause()
            os._exit(0)
        children.append(child)
        make(folder, root)

    monkeypatch.setattr(permissions, "_make", fork_and_make)
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        permissions.make_folder(tmp_path, tmp_path / "folder")
        assert locks.acquire(descriptor)
    finally:
        os.close(descriptor)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
