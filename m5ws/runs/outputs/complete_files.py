"""The files of an attempt that did not finish, and the checkpoint files without their end among them.

A file behind a link is one file, and a folder one folder: they count under their real paths.
"""

import os
import re
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

import msgspec

from m5ws.errors import M5Error
from m5ws.filesystem import Stamp, stamp
from m5ws.repository.files.interface import SourceFile
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
        """Raise M5Error if a checkpoint file was written since it was found to be complete, OSError if it is gone."""
        for file in self.complete:
            known = self.checkpoints.get(file.path)
            if known is not None and stamp(os.stat(file.location)) != known:
                raise M5Error(f"{outputs.shown(file.path)} was written while it was stored")


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


def empty_folders(work: Path, outputs: Iterable[str]) -> tuple[bytes, ...]:
    """Return the empty folders below `outputs` by their paths in the work directory.

    Those with a number at the end of their names are left out: scripts take `step-8` for a checkpoint.
    """
    found = dict[bytes, None]()
    for output in outputs:
        root = os.fsencode(work / output)
        for folder, folders, files in os.walk(root):
            if not folders and not files and not is_numbered(os.path.basename(folder)):
                found[os.path.relpath(folder, os.fsencode(work))] = None
    return tuple(sorted(found))[:_EMPTY]


def is_numbered(name: bytes) -> bool:
    """Return True for the name of a folder that ends with a number, as that of a checkpoint."""
    return _NUMBERED.fullmatch(name) is not None


def folders_of(path: bytes) -> list[bytes]:
    """Return the folders around a path, outermost first."""
    parts = path.split(b"/")
    return [b"/".join(parts[:count]) for count in range(1, len(parts))]
