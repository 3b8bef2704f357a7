"""The error that ended a rank's script: its record, and advice on a file or module that the script did not find.

An error of a loader's worker is described by its own type, text and place. A missing file is known by the `filename` of
its error, a module by its `name` and the import path. It may be in a folder above the workspace, which no snapshot
contains. The author's checkout may have the file, because git ignores it, so that no snapshot contains it. The script
may want to write into a folder that neither the checkout nor the snapshot has.
"""

import os
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from m5ws import secret_scan
from m5ws.records.failure import Failure
from m5ws.records.launch import Context

_CAUGHT = re.compile(r"Caught \w+ in DataLoader worker process (\d+)\.\nOriginal Traceback ")
"""Begin of an error's text that torch raises again in the process of the loader (torch 2.13, `torch/_utils.py`)."""
_LAST_FRAME = re.compile(
    r'.*^  File "([^"\n]+)", line (\d+), in [^\n]*\n(?: [^\n]*\n)*(\S.*)', re.DOTALL | re.MULTILINE
)


def find_failure(error: BaseException) -> Failure:
    """Return the type, the text and the place of an error, without secrets."""
    text = str(error).rstrip()
    if (caught := _CAUGHT.match(text)) and (last := _LAST_FRAME.match(text)):
        file, line, own = last.groups()
        kind, _, text = secret_scan.masked(own).partition(": ")
        return Failure(type=kind, text=text, place=f"{Path(file).name}:{line}", worker=int(caught[1]))
    return Failure(type=type(error).__name__, text=secret_scan.masked(text), place=_place(error))


def _place(error: BaseException) -> str | None:
    """Return the innermost frame of an error, as FILE:LINE; one of m5ws or of an import only without others."""
    every = traceback.extract_tb(error.__traceback__)
    own = str(Path(secret_scan.__file__).parent)
    frames = [frame for frame in every if not frame.filename.startswith((own, "<frozen importlib"))] or every
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None


def advice(error: BaseException, context: Context) -> str | None:
    """Return the file or folder that was not found, with the line for m5ws.toml; None if there is none."""
    if (outside := next(_find_outside(error, context), None)) is not None:
        return outside
    if not isinstance(error, FileNotFoundError) or not isinstance(error.filename, str):
        return None
    author, work = Path(context.author_dir), Path(os.path.realpath(context.work_dir))
    path = Path(os.path.relpath(error.filename, work))
    if path.parts[:1] in ((), ("..",), (".m5ws",), (".git",)):
        return None
    absent = next((part for part in (*reversed(path.parents), path) if not os.path.exists(work / part)), None)
    if absent is None:
        return None
    if os.path.exists(author / path):
        return (
            f"{path} is in the workspace, and the snapshot does not contain it, because git or [code] exclude ignores "
            f'it. Add `paths = ["{absent}"]` to [data] in m5ws.toml'
        )
    if absent == path or os.path.exists(author / absent):
        return None
    return (
        f"there is no folder {path.parent}. If the script writes into it, let it create the folder "
        f'(`os.makedirs(…, exist_ok=True)`), and add `outputs = ["{path.parts[0]}"]` to [run] in m5ws.toml'
    )


def _find_outside(error: BaseException, context: Context) -> Iterator[str]:
    """Yield the remedy for each path beside or above the author's checkout at which the file or module is."""
    paths: list[str] = []
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name.partition(".")[0]
        paths = [os.path.join(folder, name + suffix) for folder in sys.path for suffix in ("", ".py")]
    elif isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        paths = [error.filename]
    work, author = Path(os.path.realpath(context.work_dir)), Path(context.author_dir)
    for path in map(Path, map(os.path.abspath, paths)):
        place = Path(os.path.normpath(author / os.path.relpath(path, work)))
        # The two folders above a work directory are m5ws's own.
        if path.is_relative_to(work.parents[1]) and not path.is_relative_to(work) and place.exists():
            above = Path(os.path.commonpath([author, place]))
            directory = os.path.normpath(author.relative_to(above) / context.spec.directory)
            yield (
                f"{place} is outside the workspace, and no snapshot contains it. Make the folder above the workspace: "
                f'`m5ws -C {above} init`, and `directory = "{directory}"` in [run] of its m5ws.toml'
            )
