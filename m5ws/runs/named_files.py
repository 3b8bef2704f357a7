"""Files of the workspace that a command names, and that a run would not find: its script, and files that git ignores.

A script finds out after minutes, so they are named before the launch.
"""

import difflib
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from m5ws.config.commands import arguments, launchers
from m5ws.errors import UsageError
from m5ws.records.snapshot import Snapshot
from m5ws.records.tree import path_text
from m5ws.repository.files import trees
from m5ws.repository.repository import Repository

_SUGGESTED = 3


def refuse_missing_script(
    repo: Repository, snapshot: Snapshot, command: Sequence[str], root: Path, environment: Mapping[str, str]
) -> None:
    """Raise UsageError if the snapshot lacks the command's script, or PATH the program of another command.

    The hint has similar scripts of the snapshot, and the relative path of one in the workspace `root`.
    """
    typed = launchers.read(command)
    script = (typed.script or typed.launcher)[0]
    is_program = not typed.script and os.sep not in script
    if script == "-m" or (is_program and shutil.which(script, path=environment.get("PATH", os.defpath))):
        return
    files = {
        path_text(entry.path)
        for tree in dict.fromkeys(snapshot.trees.values())
        for entry in trees.load(repo.objects, tree).entries
    }
    wanted = os.path.normpath(script)
    if not is_program and (wanted in files or (not typed.script and os.path.isabs(script))):
        return
    inside = os.path.relpath(os.path.realpath(script), root.resolve()) if os.path.isabs(script) else wanted
    if is_program:
        hint = "Give a Python script that ends in .py, a launcher with one, or a program on PATH."
    elif similar := _similar(inside, files):
        hint = f"Did you mean {' or '.join(similar)}? Paths are relative to the workspace."
    elif os.path.isabs(script):
        hint = "Give the path relative to the workspace."
    else:
        hint = "`m5ws show SNAPSHOT` lists its parts."
    raise UsageError(f"{'PATH has no program' if is_program else 'the snapshot has no file'} {script}", hint=hint)


def _similar(wanted: str, files: Collection[str]) -> list[str]:
    """Return a path if it is one of `files`, else scripts of its name in other folders, else those with a like path."""
    if wanted in files:
        return [wanted]
    scripts = sorted(file for file in files if file.endswith(".py"))
    if same := [file for file in scripts if os.path.basename(file) == os.path.basename(wanted)]:
        return same[:_SUGGESTED]
    # The suffix makes all names similar.
    stems = [script.removesuffix(".py") for script in scripts]
    return [f"{stem}.py" for stem in difflib.get_close_matches(wanted.removesuffix(".py"), stems, _SUGGESTED)]


def warnings(
    repo: Repository, snapshot: Snapshot, command: Sequence[str], root: Path, outputs: Sequence[str]
) -> Iterator[str]:
    """Yield a warning for each existing path in `command` that is not in the snapshot, nor below `outputs`.

    `root` is the workspace. An absolute path into it is one of the live file, whether or not the snapshot has a copy.
    A path above the current directory is named whether or not it exists.
    """
    written = tuple(Path(os.path.normpath(output)) for output in outputs)
    pinned: frozenset[str] | None = None
    for word in dict.fromkeys(arguments.values(command[1:])):
        path = Path(os.path.normpath(word))
        if path.parts[:1] == ("..",) and path.name != "..":
            yield (
                f"{word} leads out of the work directory, which is a copy of the checkout: the script does not find "
                f"{os.path.normpath(root / path)} there, and files that it writes there are not stored. Give an "
                "absolute path, or one inside the checkout (for results: a folder of [run] outputs)"
            )
            continue
        inside = path.relative_to(root) if path.is_relative_to(root) else path
        if inside.is_absolute() or not _is_input(inside, written) or not os.path.lexists(root / inside):
            continue
        pinned = _paths(repo, snapshot) if pinned is None else pinned
        if inside.as_posix() not in pinned:
            reads = "the script reads the live file. To pin it" if path.is_absolute() else "if the script reads it"
            relative = f", and give the relative path {inside}" if path.is_absolute() else ""
            yield (
                f"{word} is in the workspace, and the snapshot does not contain it, because git or [code] exclude "
                f'ignores it: {reads}, add `paths = ["{inside}"]` to [data] in m5ws.toml{relative}'
            )
        elif path.is_absolute():
            yield f"{word} leads into the workspace: the script reads the live file. The snapshot's copy is {inside}"


def _is_input(path: Path, written: Sequence[Path]) -> bool:
    if path == Path() or ".." in path.parts or path.parts[0] in (".m5ws", ".git"):
        return False
    return not any(path.is_relative_to(folder) for folder in written)


def _paths(repo: Repository, snapshot: Snapshot) -> frozenset[str]:
    """Return the files of a snapshot, and all folders around them."""
    found: set[str] = set()
    for tree in dict.fromkeys(snapshot.trees.values()):
        for entry in trees.load(repo.objects, tree).entries:
            path = entry.name
            while path and path not in found:
                found.add(path)
                path = path.rpartition("/")[0]
    return frozenset(found)
