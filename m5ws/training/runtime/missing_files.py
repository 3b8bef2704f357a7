"""Files that a script did not find, and that the author's checkout has: git ignores them, so no snapshot contains them.

The error of the script names them, in attributes or in its text.
"""

import os
import re
import sys
from collections.abc import Iterator
from importlib.machinery import all_suffixes
from pathlib import Path

from m5ws.records.launch import Context

KIND = "missing-file"
"""Kind of notice."""
_CHAIN = 10
_WORD = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"|(\S+)")


def advice(error: BaseException, context: Context) -> str | None:
    """Return the file that an error is about if only the checkout has it, with the line for m5ws.toml; else None."""
    author, work = Path(context.author_dir), Path(os.path.realpath(context.work_dir))
    for place in _places(error, work):
        inside = _inside(place, work)
        if inside is not None and not (work / inside).exists() and (author / inside).exists():
            return _text(inside, work)
    return None


def _text(inside: Path, work: Path) -> str:
    pinned = next(part for part in (*reversed(inside.parents), inside) if not (work / part).exists())
    return (
        f"{inside} is in the workspace, and the snapshot does not contain it, because git or [code] exclude ignores "
        f'it. Add `paths = ["{pinned}"]` to [data] in m5ws.toml'
    )


def _inside(place: str, work: Path) -> Path | None:
    """Return a path relative to the work directory; None if it is elsewhere, or cannot be the path of an input."""
    path = Path(os.path.normpath(os.path.join(work, place)))
    if not path.is_relative_to(work) or path == work or "\0" in place or len(place) > os.pathconf("/", "PC_PATH_MAX"):
        return None
    inside = path.relative_to(work)
    return inside if inside.parts[0] not in (".m5ws", ".git") else None


def _places(error: BaseException | None, work: Path) -> Iterator[str]:
    """Yield the paths that an error and its causes may be about; relative ones begin at the work directory."""
    for _ in range(_CHAIN):
        if error is None:
            return
        if isinstance(error, ModuleNotFoundError) and error.name:
            yield from _modules(error.name, work)
        elif isinstance(error, ImportError):
            pass  # The text names a module that was found.
        else:
            names = [str(name) for name in (*_filenames(error), *_words(str(error))) if name]
            yield from names
            yield from (os.path.join(os.getcwd(), name) for name in names)
        error = error.__cause__ or error.__context__


def _filenames(error: BaseException) -> tuple[object, ...]:
    return (error.filename, error.filename2) if isinstance(error, OSError) else ()


def _words(text: str) -> Iterator[str]:
    for quoted, double, plain in _WORD.findall(text):
        yield quoted or double or plain.strip("`,.:;()[]")


def _modules(name: str, work: Path) -> Iterator[str]:
    """Yield the possible files of a module in the folders of the run's own code."""
    below = name.replace(".", "/")
    for entry in sys.path:
        folder = os.path.realpath(entry or os.getcwd())
        if Path(folder).is_relative_to(work):
            yield from (f"{folder}/{below}{end}" for end in (*all_suffixes(), "/__init__.py"))
