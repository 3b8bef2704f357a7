"""A workspace with a script without m5ws, and the interpreter of m5ws."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from m5ws.environment import recorded
from m5ws.records.environment import Observed
from m5ws.repository.repository import Repository
from m5ws.store import open_store


class Place(msgspec.Struct, frozen=True):
    """A workspace, the interpreter that runs m5ws, and the variables of its processes."""

    root: Path
    python: str
    environment: dict[str, str]

    def m5ws(
        self, *words: str, expect: int = 0, added: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [self.python, "-P", "-m", "m5ws", "-C", str(self.root), *words],
            capture_output=True,
            text=True,
            env=self.environment | dict(added or {}),
            timeout=600,
        )
        logs = "".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.root.rglob("logs/*.log")))
        assert done.returncode == expect, f"{done.returncode}\n{done.stdout}\n{done.stderr}\n{logs}"
        return done

    def observed(self, run: str) -> Observed:
        repo = Repository.open(open_store(str(self.root / ".m5ws" / "store")))
        return recorded.of_run(repo, run)
