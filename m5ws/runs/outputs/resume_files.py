"""The files that a resume gets of an attempt that did not finish: those that it left, or earlier ones.

A file is restored only if it is complete. Earlier versions replace checkpoint files that were cut, or that were removed
before a new checkpoint was complete. So no resume starts from nothing if the store has a checkpoint. The checkpoint
files of earlier paths are then all of one earlier moment, because files that are overwritten together belong together.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from m5ws.records.tree import Entry
from m5ws.runs.outputs.complete_files import folders_of

Files = Mapping[bytes, Entry]
_AS_LARGE = 0.9
"""A checkpoint file replaces another one if it has this share of its size: names and numbers in it differ."""

_TEMPORARY_ENDS = (b".tmp", b".temp", b".part", b".partial", b".incomplete", b"~")
_TEMPORARY_BEGINS = (b".", b"tmp")


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
    roots = frozenset(roots)
    dropped = _incomplete_folders(left, earlier, roots)
    kept = {path: entry for path, entry in left.files.items() if dropped.isdisjoint(folders_of(path))}
    known = {entry.digest for entry in earlier.values()}
    new = {path: kept[path] for path in left.checkpoints & kept.keys() if kept[path].digest not in known}
    gone = {path: entry for path, entry in earlier.items() if _is_gone(path, entry, left)}
    removed = {path for path in _without_successor(left, earlier, gone, new, roots) if is_checkpoint(earlier[path])}
    lost = _overwritten(left, earlier, is_checkpoint) | removed
    changed = {path for path in left.checkpoints & kept.keys() if not _is_same(kept[path], earlier.get(path))}
    unfinished = {path for path in lost | changed if _is_temporary(path, roots)}
    if changed - unfinished:
        # A file with a temporary name replaces a complete one at its end. The script reads the complete one.
        lost, removed = lost - unfinished, removed - unfinished
    if lost:
        lost |= {path for path, entry in gone.items() if is_checkpoint(entry)}
    put_back = set(lost)
    if lost:
        put_back |= {path for path in left.checkpoints if path in earlier}
    has_newer = _has_newer(earlier, new, lost) and not _is_killed_save(left, earlier, new, removed)
    if (lost or not left.checkpoints.isdisjoint(earlier)) and not has_newer:
        # Files beside and above a checkpoint, such as one with its name, belong to it.
        around = {folder for path in left.cut | lost for folder in (b"", *folders_of(path))}
        put_back |= {path for path in earlier if os.path.dirname(path) in around}
    return _with_valid_links(_merge({path: earlier[path] for path in put_back}, kept), earlier)


def _overwritten(left: LeftFiles, earlier: Files, is_checkpoint: Callable[[Entry], bool]) -> set[bytes]:
    """Return the earlier checkpoint files that were cut or emptied."""
    cut = {path for path in earlier if path in left.cut}
    for path, entry in earlier.items():
        now = left.files.get(path)
        is_emptied = now is not None and now.link is None and now.size_bytes == 0 < entry.size_bytes
        if path not in cut and is_emptied and entry.link is None and is_checkpoint(entry):
            cut.add(path)
    return cut


def _is_same(entry: Entry, before: Entry | None) -> bool:
    return before is not None and entry.digest == before.digest


def _is_temporary(path: bytes, roots: frozenset[bytes]) -> bool:
    """Return True if the name of a file, or of a folder around it below `roots`, is that of an unfinished save."""
    names = [os.path.basename(each) for each in (*folders_of(path), path) if each not in roots]
    return names[-1].startswith(_TEMPORARY_BEGINS) or any(name.endswith(_TEMPORARY_ENDS) for name in names)


def _is_gone(path: bytes, entry: Entry, left: LeftFiles) -> bool:
    """Return True for an earlier file without a file, a cut one or a link in its place."""
    places = (path, *folders_of(path))
    return entry.link is None and path not in left.cut and left.files.keys().isdisjoint(places)


def _without_successor(
    left: LeftFiles, earlier: Files, gone: Files, new: Files, roots: frozenset[bytes]
) -> Iterator[bytes]:
    """Yield the files that are gone and that no new checkpoint file replaces.

    A successor is as large. If a file was cut, or if another file with the same numbers has a successor by its name,
    the names must be equal but for numbers. An earlier folder without new names, of which a file is gone, was removed
    in part: its other files are no successors.
    """
    patterns = set(map(_pattern, new))
    replaced = {_numbers(path) for path in gone if _pattern(path) in patterns} - {()}
    around = {folder for root in roots for folder in (root, *folders_of(root))}
    around |= {folder for path in (left.files.keys() | left.cut) - earlier.keys() for folder in folders_of(path)}
    for path, entry in gone.items():
        is_named = bool(left.cut) or _numbers(path) in replaced
        removed = set(folders_of(path)) - around
        if not any(
            _is_as_large(other.size_bytes, entry.size_bytes)
            and (not is_named or _pattern(name) == _pattern(path))
            and removed.isdisjoint(folders_of(name))
            for name, other in new.items()
        ):
            yield path


def _is_killed_save(left: LeftFiles, earlier: Files, new: Files, removed: set[bytes]) -> bool:
    """Return True if the attempt ended in the save of a successor of `removed` files.

    That is one with their pattern. Without any new file of an earlier pattern, its name is unknown.
    """
    patterns = set(map(_pattern, removed))
    known = set(map(_pattern, earlier))
    is_unknown = known.isdisjoint(map(_pattern, new.keys() - earlier.keys()))
    return bool(removed) and (is_unknown or not patterns.isdisjoint(map(_pattern, left.cut)))


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
    """Return the files, with links only to them and their folders; an earlier link replaces one that is not valid."""
    places = {place for path, entry in files.items() if entry.link is None for place in (*folders_of(path), path)}
    links = {path: entry for path, entry in _merge(files, earlier).items() if entry.link is not None}
    chosen = {path: entry for path, entry in files.items() if entry.link is None}
    for path in links:
        both = (files.get(path), earlier.get(path))
        valid = (entry for entry in both if entry is not None and _leads(path, entry, places))
        if (entry := next(valid, None)) is not None:
            chosen[path] = entry
    return chosen


def _leads(path: bytes, entry: Entry, places: set[bytes]) -> bool:
    """Return True if an entry is a link to one of the places."""
    if entry.link is None:
        return False
    return os.path.normpath(os.path.join(os.path.dirname(path), entry.link)) in places


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


def _numbers(name: bytes) -> tuple[bytes, ...]:
    return tuple(re.findall(rb"[0-9]+", name))
