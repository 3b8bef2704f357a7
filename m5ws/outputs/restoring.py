"""Output files of the store, written to a folder, and restored at a resume.

A resume gets one whole copy, of one moment: each file, folder and link of that moment, with its time, and no other.
Each node of an attempt gets the merged files of all nodes.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from m5ws import fresh_directory
from m5ws.errors import CorruptObject
from m5ws.outputs import merging
from m5ws.outputs.collect import folders_of
from m5ws.outputs.saved import StoredOutputs
from m5ws.progress import Progress
from m5ws.records.tree import Tree
from m5ws.repository.files.materialise import materialise
from m5ws.repository.repository import Repository
from m5ws.work import directories


def write(repo: Repository, stored: StoredOutputs, target: Path, progress: Progress | None = None) -> Tree:
    """Write stored output files into `target`, which is missing or empty, and return their tree.

    Raises UsageError for another target, OutputsConflict, NotFound, CorruptObject, NotWritten.
    """
    tree = Tree(entries=merging.load(repo, stored.run, stored.names).entries)
    _write(repo, tree, target, progress)
    return tree


def _write(repo: Repository, tree: Tree, target: Path, progress: Progress | None = None) -> None:
    with fresh_directory.create(target) as made:
        materialise(repo.objects, [tree], made, progress, read_only=False)


def restore(repo: Repository, stored: StoredOutputs, work: Path) -> str:
    """Restore output files into the work directory, over the snapshot's files, and return a message.

    Raises the errors of `write`, and OSError.
    """
    merged = merging.load(repo, stored.run, stored.names)
    links = merged.links
    if len(merged.modified_ns) != len(merged.entries):
        raise CorruptObject(f"output files {stored.name} of run {stored.run} have another number of times than files")
    # A path that is a link, or in a folder that is one, is not written as a file.
    places = ((entry, (*folders_of(entry.path), entry.path)) for entry in merged.entries)
    wanted = [(entry, merged.modified_ns[entry.path]) for entry, around in places if links.keys().isdisjoint(around)]
    aside = work.with_name(directories.RESTORED)
    _write(repo, Tree(entries=tuple(entry for entry, _ in wanted)), aside)
    for entry, time_ns in wanted:
        place = _clear(work, entry.path)
        (aside / os.fsdecode(entry.path)).replace(place)
        os.utime(place, ns=(time_ns, time_ns))
    shutil.rmtree(aside)
    for path, target in links.items():
        os.symlink(os.fsdecode(target), _clear(work, path))
    for path in merged.folders:
        _make_folder(work, _parts(path))
    for path, time_ns in merged.folders.items():
        os.utime(work / os.fsdecode(path), ns=(time_ns, time_ns))
    return (
        f"{len(wanted):,} output files of attempt {stored.attempt} were restored, from the copy {stored.name}; "
        "the script itself must continue from them"
    )


def _clear(work: Path, path: bytes) -> Path:
    """Return the place of a file or link, with nothing there, in real folders."""
    *folders, name = _parts(path)
    place = _make_folder(work, folders) / name
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    return place


def _make_folder(work: Path, parts: Sequence[str]) -> Path:
    """Make a folder and its parents, in place of any file or link. Nothing is made outside of `work`."""
    folder = work
    for part in parts:
        folder /= part
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            folder.unlink()
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _parts(path: bytes) -> list[str]:
    """Return the parts of a path below the work directory. Raises CorruptObject for a path that leads elsewhere."""
    parts = path.split(b"/")
    if not {b"", b".", b".."}.isdisjoint(parts):
        raise CorruptObject(f"output files have the forbidden path {path!r}")
    return list(map(os.fsdecode, parts))
