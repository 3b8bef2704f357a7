"""The files of an attempt that did not finish, and the checkpoint files without their end among them.

A file behind a link is one file, and a folder one folder: they count under their real paths.
"""

import os
import re
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

import msgspec

from m5ws.filesystem import Stamp, stamp
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.writer import FileChanged
from m5ws.runs.outputs import checkpoint_formats, outputs

WITHOUT_END = "without their end, because the attempt ended while they were written"
"""Begins the notice of half-written files that are not stored."""
_NUMBERED = re.compile(rb"(.*[-_=.])?[0-9]+", re.DOTALL)
_EMPTY = 1_000
"""Number of empty folders that are recorded."""


class InspectedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """`complete` files (or of formats without a known end), and the paths of those that were `cut`.

    `checkpoints` has the complete checkpoint files, with their stamps before they were read.
    """

    complete: tuple[SourceFile, ...]
    cut: frozenset[bytes]
    checkpoints: dict[bytes, Stamp]

    def require_unchanged(self) -> None:
        """Raise FileChanged if a checkpoint file was written since it was inspected, OSError if it is gone."""
        for file in self.complete:
            known = self.checkpoints.get(file.path)
            if known is not None and stamp(os.stat(file.location)) != known:
                raise FileChanged(f"{outputs.shown(file.path)} was written while it was stored")


def inspect(files: Iterable[SourceFile]) -> InspectedFiles:
    """Inspect files in the work directory. Raises OSError for a file that is gone."""
    complete, cut, checkpoints = list[SourceFile](), set[bytes](), dict[bytes, Stamp]()
    for file in files:
        seen = stamp(os.stat(file.location))
        ending = checkpoint_formats.ending(Path(file.location))
        if ending == "cut":
            cut.add(file.path)
            continue
        complete.append(file)
        if ending == "complete":
            checkpoints[file.path] = seen
    return InspectedFiles(complete=tuple(complete), cut=frozenset(cut), checkpoints=checkpoints)


def describe_cut(files: Iterable[SourceFile]) -> list[tuple[str, str]]:
    """Return a notice, by kind, of the files that are not stored because they lack their end; none if all are complete.

    Raises OSError.
    """
    cut = inspect(files).cut
    return (
        [(outputs.NOT_KEPT, f"{WITHOUT_END}: {outputs.listed(list(map(outputs.shown, sorted(cut))))}")] if cut else []
    )


def links(work: Path, paths: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the links to another of the files, or to a folder with some of them, each with its target.

    Both are paths in the work directory.
    """
    root, known = os.fsencode(os.path.realpath(work)), dict[bytes, bytes | None]()
    found = dict[bytes, bytes]()
    for path in paths:
        for place in (*folders_of(path), path):
            if place not in known:
                whole = os.path.join(root, place)
                known[place] = os.path.relpath(os.path.realpath(whole), root) if os.path.islink(whole) else None
            target = known[place]
            if target is not None:
                found[place] = target
                break
    real = {place for path in paths if is_real(path, found) for place in (*folders_of(path), path)}
    return {place: target for place, target in found.items() if target in real}


def is_real(path: bytes, links: Container[bytes]) -> bool:
    """Return True if a path is not a link, and in no folder that is one."""
    return not any(place in links for place in (*folders_of(path), path))


def empty_folders(work: Path, outputs: Iterable[str], restored: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the empty folders below `outputs` that a resume gets, by their paths in the work directory.

    Scripts take a numbered folder, such as `step-8`, for a checkpoint. So empty folders in one are left out if it has
    no file that is `restored`, unless the script had prepared it.
    """
    found, top = dict[bytes, None](), os.fsencode(work)
    filled = {folder for path in restored for folder in folders_of(path)}
    for output in outputs:
        for folder, folders, files in os.walk(os.fsencode(work / output)):
            if folders or files:
                continue
            path = os.path.relpath(folder, top)
            numbered = [part for part in (*folders_of(path), path) if _NUMBERED.fullmatch(os.path.basename(part))]
            if all(part in filled or _is_prepared(os.path.join(top, part)) for part in numbered):
                found[path] = None
    return tuple(sorted(found))[:_EMPTY]


def _is_prepared(folder: bytes) -> bool:
    """Return True for a numbered folder without files that a script made before it needs it.

    A kill leaves at most one without its first file, and that is newer than the first file in each folder like it.
    """
    stem = _stem(folder)
    with os.scandir(os.path.dirname(folder)) as entries:
        alike = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False) and _stem(entry.path) == stem]
    times = {other: _first_file(other) for other in alike}
    if times.pop(folder, None) is not None:
        return False
    written = [time_s for time_s in times.values() if time_s is not None]
    return len(written) < len(times) or os.stat(folder).st_mtime < max(written, default=0.0)


def _stem(path: bytes) -> bytes | None:
    """Return the name of a numbered folder without its number; None for any other."""
    match = _NUMBERED.fullmatch(os.path.basename(path))
    return match and (match[1] or b"")


def _first_file(folder: bytes) -> float | None:
    """Return the time of the oldest file in a folder, in seconds since the epoch; None without a file."""
    files = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    return min((os.lstat(file).st_mtime for file in files), default=None)


def folders_of(path: bytes) -> list[bytes]:
    """Return the folders around a path, outermost first."""
    parts = path.split(b"/")
    return [b"/".join(parts[:count]) for count in range(1, len(parts))]
