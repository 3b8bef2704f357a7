"""Files and folders that a script did not find.

Files that the author's checkout has, because git ignores them, so that no snapshot contains them; folders that neither
has, into which a script may write; and packages of the snapshot in a folder that imports do not search. Attributes of
the script's error name them (`filename`, `name`); its text is not read.
"""

import os
import sys
from collections.abc import Iterator
from importlib.machinery import all_suffixes
from pathlib import Path

from m5ws.records.launch import Context

KIND = "missing-file"
"""Kind of notice."""
_CHAIN = 10


def advice(error: BaseException, context: Context) -> str | None:
    """Return the file, folder or package that was not found, with the line for m5ws.toml; None if there is none."""
    author, work = Path(context.author_dir), Path(os.path.realpath(context.work_dir))
    for place in _places(error, work):
        inside = _inside(place, work)
        if inside is not None and not (work / inside).exists() and (author / inside).exists():
            return _text(inside, work)
    return _unsearched_folder(error, work) or _absent_folder(error, author, work)


def _unsearched_folder(error: BaseException, work: Path) -> str | None:
    """Return advice on a module in a folder of the work directory that imports do not search."""
    missing = next((cause for cause in _causes(error) if isinstance(cause, ModuleNotFoundError) and cause.name), None)
    name = str(missing.name).partition(".")[0] if missing is not None else ""
    searched = {os.path.realpath(entry or os.getcwd()) for entry in sys.path}
    for folder in (work, *sorted(work.glob("[!.]*/"))) if name and name not in sys.modules else ():
        module = next((path for path in (folder / name, folder / f"{name}.py") if _is_module(path)), None)
        if module is not None and os.path.realpath(folder) not in searched:
            return (
                f"the snapshot has {module.relative_to(work)}, and imports do not search its folder. Add `environment "
                f'= {{ PYTHONPATH = "{folder.relative_to(work)}" }}` to [run] in m5ws.toml'
            )
    return None


def _is_module(path: Path) -> bool:
    return (path.suffix == ".py" and path.is_file()) or next(path.glob("*.py"), None) is not None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that led to it."""
    for _ in range(_CHAIN):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _absent_folder(error: BaseException, author: Path, work: Path) -> str | None:
    """Return advice on a folder that neither the checkout nor the work directory has."""
    name = error.filename if isinstance(error, FileNotFoundError) else None
    parent = os.path.dirname(name) if isinstance(name, str) else ""
    inside = _inside(os.path.join(os.getcwd(), parent), work) if parent else None
    if inside is None or (work / inside).exists() or (author / inside).exists():
        return None
    if (work / inside.parts[0]).is_dir():
        return (
            f"there is no folder {inside}: let the script create it, `os.makedirs(…, exist_ok=True)`. Its files are "
            f'kept if [run] outputs in m5ws.toml has "{inside.parts[0]}"'
        )
    return (
        f'there is no folder {inside}. If the script writes into it, add `outputs = ["{inside.parts[0]}"]` to [run] in '
        "m5ws.toml: the folder is made, and its files are kept"
    )


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
    for cause in _causes(error):
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            yield from _modules(cause.name, work)
        elif isinstance(cause, OSError):
            names = [os.fsdecode(name) for name in (cause.filename, cause.filename2) if isinstance(name, str | bytes)]
            yield from names
            yield from (os.path.join(os.getcwd(), name) for name in names)


def _modules(name: str, work: Path) -> Iterator[str]:
    """Yield the possible files of a module in the folders of the run's own code."""
    below = name.replace(".", "/")
    for entry in sys.path:
        folder = os.path.realpath(entry or os.getcwd())
        if Path(folder).is_relative_to(work):
            yield from (f"{folder}/{below}{end}" for end in (*all_suffixes(), "/__init__.py"))
