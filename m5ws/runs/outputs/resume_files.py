"""The files that a resume gets of an attempt that did not finish: those that it left, or earlier ones.

A file is restored only if it is complete. Earlier versions replace checkpoint files that were cut, or that were removed
before a new checkpoint was complete. So no resume starts from nothing if the store has a checkpoint. The checkpoint
files of earlier paths are then all of one earlier moment, because files that are overwritten together belong together.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

from m5ws.records.tree import Entry
from m5ws.runs.outputs.complete_files import folders_of

Files = Mapping[bytes, Entry]
_AS_LARGE = 0.9
"""A checkpoint file replaces another one if it has this share of its size: names and numbers in it differ."""


class LeftFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The `files` that an attempt left, those of them that are `checkpoints`, and the paths that were `cut`."""

    files: dict[bytes, Entry]
    checkpoints: frozenset[bytes]
    cut: frozenset[bytes]


def choose(
    left: LeftFiles, earlier: Files, roots: Iterable[bytes], is_checkpoint: Callable[[Entry], bool]
) -> dict[bytes, Entry]:
    """Return the files that a resume gets.

    `earlier` has the files that a resume got before, `roots` the folders of [run] outputs. `is_checkpoint` reads an
    earlier file.
    """
    dropped = _incomplete_folders(left, earlier, frozenset(roots))
    kept = {path: entry for path, entry in left.files.items() if dropped.isdisjoint(folders_of(path))}
    known = {entry.digest for entry in earlier.values()}
    new = {path: kept[path] for path in left.checkpoints & kept.keys() if kept[path].digest not in known}
    lost = _lost(left, earlier, _largest(new.values()), is_checkpoint)
    put_back = set(lost)
    if lost:
        put_back |= {path for path in left.checkpoints if path in earlier}
    has_newer = _has_newer(earlier, new, lost)
    if (lost or not left.checkpoints.isdisjoint(earlier)) and not has_newer:
        # Files beside and above a checkpoint, such as one with its name, belong to it.
        around = {folder for path in left.cut | lost for folder in (b"", *folders_of(path))}
        put_back |= {path for path in earlier if os.path.dirname(path) in around}
    return _with_valid_links(_merge({path: earlier[path] for path in put_back}, kept), earlier)


def _lost(left: LeftFiles, earlier: Files, new_bytes: int, is_checkpoint: Callable[[Entry], bool]) -> set[bytes]:
    """Return the earlier checkpoint files that were cut, or removed before a new one was complete.

    `new_bytes` is the size of the largest new checkpoint file.
    """
    lost = {path for path in earlier if path in left.cut}
    for path, entry in earlier.items():
        now = left.files.get(path)
        is_emptied = now is not None and now.link is None and now.size_bytes == 0 < entry.size_bytes
        is_gone = now is None and left.files.keys().isdisjoint(folders_of(path))
        is_missing = is_gone and not _is_as_large(new_bytes, entry.size_bytes)
        if path not in lost and entry.link is None and (is_emptied or is_missing) and is_checkpoint(entry):
            lost.add(path)
    return lost


def _largest(entries: Iterable[Entry]) -> int:
    return max((entry.size_bytes for entry in entries), default=0)


def _is_as_large(new_bytes: int, size_bytes: int) -> bool:
    """Return True if a new file of one size may be the successor of a file of another size."""
    return new_bytes > 0 and new_bytes >= _AS_LARGE * size_bytes


def _has_newer(earlier: Files, new: Files, lost: set[bytes]) -> bool:
    """Return True if the attempt left a checkpoint that is newer than the earlier files.

    If files were lost, it is one under a new name, because one that was overwritten may belong to them.
    """
    if not lost:
        return bool(new)
    named = _largest(entry for path, entry in new.items() if path not in earlier)
    return _is_as_large(named, _largest(earlier[path] for path in lost))


def _merge(first: Files, second: Files) -> dict[bytes, Entry]:
    """Return the files of both; those of `second` only where `first` has no file, folder or link."""
    folders = {folder for path in first for folder in folders_of(path)}
    free = {
        path: entry
        for path, entry in second.items()
        if path not in folders and not any(folder in first for folder in folders_of(path))
    }
    return free | dict(first)


def _with_valid_links(files: dict[bytes, Entry], earlier: Files) -> dict[bytes, Entry]:
    """Return the files, with links only to folders that have files; an earlier link replaces one that is not valid."""
    folders = {folder for path, entry in files.items() if entry.link is None for folder in folders_of(path)}
    links = {path: entry for path, entry in _merge(files, earlier).items() if entry.link is not None}
    chosen = {path: entry for path, entry in files.items() if entry.link is None}
    for path in links:
        both = (files.get(path), earlier.get(path))
        valid = (entry for entry in both if entry is not None and _leads(path, entry, folders))
        if (entry := next(valid, None)) is not None:
            chosen[path] = entry
    return chosen


def _leads(path: bytes, entry: Entry, folders: set[bytes]) -> bool:
    """Return True if an entry is a link to one of the folders."""
    if entry.link is None:
        return False
    return os.path.normpath(os.path.join(os.path.dirname(path), entry.link)) in folders


# --- folders that are checkpoints ------------------------------------------------------------------


def _incomplete_folders(left: LeftFiles, earlier: Files, roots: frozenset[bytes]) -> frozenset[bytes]:
    """Return the new folders that are checkpoints of several files, of which one was cut."""
    known = {folder for path in earlier for folder in folders_of(path)} | roots | {b""}
    paths = left.files.keys() | earlier.keys()
    return frozenset(
        folder for path in left.cut if (folder := _checkpoint_folder(path, left, known, paths)) is not None
    )


def _checkpoint_folder(path: bytes, left: LeftFiles, known: set[bytes], paths: Iterable[bytes]) -> bytes | None:
    """Return the new folder that is one checkpoint with the file at `path`; None if there is none.

    It is the innermost one that has the same file as a folder beside it with another number (step-4, step-8). Without
    such a folder it is the file's own one, unless this has a checkpoint in each file.
    """
    new = [folder for folder in reversed(folders_of(path)) if folder not in known]
    for folder in new:
        inside = path[len(folder) :]
        beside = re.compile(re.sub(rb"[0-9]+", b"[0-9]+", re.escape(os.path.basename(folder))))
        start = os.path.dirname(folder)
        if any(
            other != path
            and other.endswith(inside)
            and os.path.dirname(sibling := other[: -len(inside)]) == start
            and beside.fullmatch(os.path.basename(sibling))
            for other in paths
        ):
            return folder
    return new[0] if new and not _is_series(path, left) else None


def _is_series(path: bytes, left: LeftFiles) -> bool:
    """Return True if the folder of a file has complete checkpoints with numbers: the file is another one of them.

    Such as `epoch=1.ckpt`, or `last.ckpt`, beside `epoch=0.ckpt`.
    """
    folder, name = os.path.split(path)
    names = {os.path.basename(other) for other in left.checkpoints if os.path.dirname(other) == folder}
    numbered = {other for other in names if _pattern(other) != other}
    if _pattern(name) != name:
        return _pattern(name) in map(_pattern, numbered)
    return any(os.path.splitext(other)[1] == os.path.splitext(name)[1] for other in numbered)


def _pattern(name: bytes) -> bytes:
    return re.sub(rb"[0-9]+", b"#", name)
