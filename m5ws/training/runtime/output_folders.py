"""The folders of `[run] outputs` exist when a script starts. A script that makes them itself still can.

Without this, `os.mkdir("out")` would fail in a run, although it succeeds in a fresh checkout.
"""

import os
from pathlib import Path
from typing import Any

from m5ws.records.launch import Context


def let_scripts_make(context: Context) -> None:
    """Let this process make each folder without files once, although it exists."""
    empty = set(_empty(Path(context.work_dir), context.spec.outputs))
    make = os.mkdir

    def mkdir(path: Any, *arguments: Any, **named: Any) -> None:
        try:
            make(path, *arguments, **named)
        except FileExistsError:
            place = os.path.realpath(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else None
            if place not in empty:
                raise
            empty.remove(place)

    os.mkdir = mkdir


def _empty(work: Path, outputs: tuple[str, ...]) -> list[str]:
    """Return the folders of outputs, and those around them, that contain no file."""
    places = {part for output in outputs for part in (work / output, *(work / output).parents) if part != work}
    return [os.path.realpath(place) for place in places if place.is_relative_to(work) and _has_no_file(place)]


def _has_no_file(folder: Path) -> bool:
    return folder.is_dir() and not any(files for _, _, files in os.walk(folder))
