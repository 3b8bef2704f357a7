"""The script or program that a command names, checked before the launch."""

import difflib
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from m5ws.config.commands import launchers
from m5ws.errors import UsageError
from m5ws.records.run import LaunchSpec
from m5ws.records.snapshot import Snapshot
from m5ws.records.tree import path_text
from m5ws.repository.files import trees
from m5ws.repository.repository import Repository

_SUGGESTED = 3
_ALIKE = 0.8
"""Least similarity of two paths, of which both end in `.py`."""


def refuse_missing_script(
    repo: Repository, snapshot: Snapshot, spec: LaunchSpec, root: Path, environment: Mapping[str, str]
) -> None:
    """Raise UsageError if the snapshot lacks the command's script, or PATH the program of another command.

    The hint has similar scripts of the snapshot, and the relative path of one in the workspace `root`.
    """
    typed = launchers.read(spec.command)
    script = (typed.script or typed.launcher)[0]
    if not typed.script and os.sep not in script:
        if shutil.which(script, path=environment.get("PATH", os.defpath)) is None:
            hint = "Give a Python script that ends in .py, a launcher with one, or a program on PATH."
            raise UsageError(f"PATH has no program {script}", hint=hint)
        return
    if script == "-m" or (not typed.script and os.path.isabs(script)):
        return
    loaded = (trees.load(repo.objects, tree) for tree in set(snapshot.trees.values()))
    files = {path_text(entry.path) for tree in loaded for entry in tree.entries}
    path = os.path.normpath(os.path.join(spec.directory, script))
    if path not in files:
        similar = _similar(os.path.relpath(os.path.realpath(root / path), root.resolve()), files)
        hint = f"Did you mean {' or '.join(similar)}? " if similar else ""
        where = f"{spec.directory}, the directory of [run]" if spec.directory != "." else "the workspace"
        raise UsageError(
            f"the snapshot has no file {path}", hint=f"{hint}Paths are relative to this folder, or to {where}."
        )


def _similar(wanted: str, files: Collection[str]) -> list[str]:
    """Return a path if it is one of `files`, else scripts of its name in other folders, else files with a like path."""
    scripts = sorted(file for file in files if file.endswith(".py"))
    same = [wanted] if wanted in files else [file for file in scripts if Path(file).name == Path(wanted).name]
    return same[:_SUGGESTED] or difflib.get_close_matches(wanted, scripts, _SUGGESTED, _ALIKE)
