"""A workspace for tests that take snapshots of it."""

from pathlib import Path

import pytest

from tests.support.workspace.checkouts import commit_all, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace in git: code, a config file, a script and a link."""
    place = tmp_path / "w"
    write(place, {"train.py": "print(1)\n", "config.yaml": "lr: 1\n", "bin/go": "#!/bin/sh\n", ".gitignore": "*.log\n"})
    (place / "bin" / "go").chmod(0o755)
    (place / "latest").symlink_to("bin/go")
    commit_all(place)
    return place
