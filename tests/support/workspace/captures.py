"""Snapshots as `m5ws snapshot` takes them, with a fixed observed environment."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from m5ws.config.settings import Settings
from m5ws.environment.observe import machine
from m5ws.records.environment import Declared, Observed, Origin
from m5ws.repository.files import trees
from m5ws.repository.repository import Repository
from m5ws.snapshot import snapshot
from m5ws.snapshot.context import Warn
from m5ws.snapshot.snapshot import CapturedSnapshot
from m5ws.snapshot.sources.dvc import Dvc
from m5ws.snapshot.sources.git import Git
from m5ws.snapshot.sources.tokenizer import Tokenizers

SECRET = "gh" + "p_" + "a1B2" * 9
"""Text in the form of a secret."""


class Machine(machine.Machine):
    """A fixed machine, with a count of its observations."""

    looks = 0
    local: Mapping[str, Origin] = {}

    def observe(self, environment: Mapping[str, str]) -> Observed:
        self.looks += 1
        return Observed(facts={"python": "3.11", "threads": environment.get("OMP_NUM_THREADS")})

    def declare(self, root: Path, lock_files: Sequence[str], image: str | None) -> Declared:
        return Declared(locks={name: "0" * 64 for name in lock_files if (root / name).is_file()}, image=image)

    def origins(self, image: str | None) -> dict[str, Origin]:
        return dict(self.local)


def make_settings(**sections: Mapping[str, Any]) -> Settings:
    """Return the settings of an m5ws.toml with these sections."""
    return msgspec.convert(sections, Settings)


def take(
    root: Path,
    repo: Repository,
    settings: Settings | None = None,
    *,
    machine: Machine | None = None,
    source: Git | None = None,
    datasets: Dvc | None = None,
    probe: Tokenizers | None = None,
    message: str | None = None,
    dry_run: bool = False,
    observe: bool = True,
    warn: Warn | None = None,
) -> CapturedSnapshot:
    """Take a snapshot of `root` with the workspace's index. Raises as `snapshot.take`."""
    arguments = (
        root,
        settings or Settings(),
        repo,
        source or Git(),
        datasets,
        probe,
        machine or Machine(),
        root / ".m5ws" / "index",
    )
    return snapshot.take(*arguments, message=message, warn=warn, dry_run=dry_run, observe=observe)


def names(repo: Repository, captured: CapturedSnapshot) -> dict[str, list[str]]:
    """Return the names of the files of each part, without empty parts."""
    parts = {part: trees.load(repo.objects, tree).entries for part, tree in captured.snapshot.trees.items()}
    return {part: [entry.name for entry in entries] for part, entries in parts.items() if entries}
