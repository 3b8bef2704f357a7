"""The script or program that a command names, checked before the launch."""

import difflib
import os
import shutil
from collections.abc import Mapping

from m5ws.config.commands import launchers
from m5ws.errors import UsageError
from m5ws.records.run import LaunchSpec
from m5ws.records.snapshot import Snapshot
from m5ws.records.tree import path_text
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository


def refuse_missing_script(
    repo: Repository, snapshot: Snapshot, spec: LaunchSpec, environment: Mapping[str, str]
) -> None:
    """Raise UsageError if the snapshot lacks the command's script, or PATH the program of another command."""
    typed = launchers.read(spec.command)
    script = (typed.script or typed.launcher)[0]
    if not typed.script and os.sep not in script:
        if shutil.which(script, path=environment.get("PATH", os.defpath)) is None:
            hint = "Give a Python script that ends in .py, a launcher with one, or a program on PATH."
            raise UsageError(f"PATH has no program {script}", hint=hint)
        return
    if script == "-m" or (not typed.script and os.path.isabs(script)):
        return
    files = {path_text(entry.path) for entry in snapshots.entries(repo, snapshot)}
    path = os.path.normpath(os.path.join(spec.directory, script))
    if path not in files:
        similar = difflib.get_close_matches(path, files, cutoff=0.8)
        hint = f"Did you mean {' or '.join(similar)}? " if similar else ""
        where = f"{spec.directory}, the directory of [run]" if spec.directory != "." else "the workspace"
        raise UsageError(
            f"the snapshot has no file {path}", hint=f"{hint}Paths are relative to this folder, or to {where}."
        )
