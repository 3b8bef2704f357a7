"""Folders on the shell's PYTHONPATH. Ranks get the folders of the workspace only from the record of their run.

Other folders are inherited, and recorded with each attempt as the fact `python.path.outside`.
"""

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "PYTHONPATH"


def entries(environment: Mapping[str, str], root: Path) -> list[str]:
    """Return the folders on PYTHONPATH: folders in the workspace `root` relative to it, all other folders absolute."""
    root = root.resolve()
    folders = [Path(part).resolve() for part in environment.get(VARIABLE, "").split(os.pathsep) if part]
    return [str(folder.relative_to(root) if folder.is_relative_to(root) else folder) for folder in folders]


def at(environment: Mapping[str, str], directory: str) -> dict[str, str]:
    """Return a recorded PYTHONPATH for processes that start in a folder of the work directory; nothing without it."""
    folders = filter(None, environment.get(VARIABLE, "").split(os.pathsep))
    moved = [folder if os.path.isabs(folder) else os.path.relpath(folder, directory) for folder in folders]
    return {VARIABLE: os.pathsep.join(moved)} if moved else {}


def recorded(settings: Mapping[str, str], root: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the shell's PYTHONPATH for the record of a run, if it has a folder of the workspace `root`; else nothing.

    A value in `settings`, the variables of m5ws.toml, comes first. Relative folders belong to the work directory.
    """
    folders = entries(environment, root)
    if VARIABLE in settings or all(map(os.path.isabs, folders)):
        return {}
    return {VARIABLE: os.pathsep.join(dict.fromkeys(folders))}
