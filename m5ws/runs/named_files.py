"""Files of the workspace that a command names, and that a run would not find: git ignores them.

A script finds out after minutes, so they are named before the launch.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from m5ws.records.snapshot import Snapshot
from m5ws.repository.files import trees
from m5ws.repository.repository import Repository


def warnings(
    repo: Repository, snapshot: Snapshot, command: Sequence[str], root: Path, outputs: Sequence[str]
) -> Iterator[str]:
    """Yield a warning for each existing path in `command` that is not in the snapshot, nor below `outputs`.

    `root` is the workspace. An absolute path into it is one of the live file, whether or not the snapshot has a copy.
    """
    written = tuple(Path(os.path.normpath(output)) for output in outputs)
    pinned: frozenset[str] | None = None
    for word in dict.fromkeys(_values(command[1:])):
        path = Path(os.path.normpath(word))
        inside = path.relative_to(root) if path.is_relative_to(root) else path
        if inside.is_absolute() or not _is_input(inside, written) or not os.path.lexists(root / inside):
            continue
        pinned = _paths(repo, snapshot) if pinned is None else pinned
        if inside.as_posix() not in pinned:
            yield (
                f"{word} is in the workspace, and the snapshot does not contain it, because git or [code] exclude "
                f'ignores it. If the script reads it, add `paths = ["{inside}"]` to [data] in m5ws.toml'
            )
        elif path.is_absolute():
            yield f"{word} leads into the workspace: the script reads the live file. The snapshot's copy is {inside}"


def _values(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the arguments, and the values of those like `--key=value`."""
    for argument in arguments:
        key, _, value = argument.partition("=")
        if value:
            yield value
        elif not key.startswith("-"):
            yield key


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
