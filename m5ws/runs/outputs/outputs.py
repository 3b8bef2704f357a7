"""The results of an attempt: the files that it wrote in the folders of `[run] outputs`.

Unchanged files of the snapshot are inputs, in any folder. Links are followed; the result is the content behind them.
All other files of the attempt are listed and not kept.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from m5ws.filesystem import Stamp
from m5ws.repository.files.interface import SourceFile
from m5ws.runs import inputs

NOT_KEPT = "outputs-not-kept"
NOT_STORED = "outputs-not-stored"
"""Kinds of notices: results that are not kept, each by name; and that no result could be stored."""
RESTORED = "outputs-restored"
"""Kind of notice: output files of an earlier attempt were restored."""
_NEVER = {".git", ".m5ws"}
_CACHE = "__pycache__"
_LISTED = 20
_FEW = 3
"""Number of files in a folder that are listed by name."""
_BESIDE = "written outside [run] outputs: "
_FOLDED = re.compile(r" \([\d,]+ files, [\d,.]+ MB\)")


class Outputs(msgspec.Struct, frozen=True, kw_only=True):
    """The `files` to keep, and the other files of the attempt, in words."""

    files: tuple[SourceFile, ...]
    not_kept: tuple[str, ...]


def collect(work: Path, outputs: Sequence[str], given: dict[Path, Stamp], begun_ns: int) -> Outputs:
    """Return the outputs in `work` of an attempt with the inputs `given` and the start at `begun_ns`.

    A file outside `work` behind a link is a result if it changed after the start.
    """
    root = work.resolve()
    untouched = {root / path.relative_to(work) for path in inputs.untouched(work, given)}
    files: dict[bytes, SourceFile] = {}
    faults: dict[str, None] = {}
    for output in outputs:
        for path in _files(root / output):
            inside = path.relative_to(root)
            fault = _fault(root, path, untouched, begun_ns)
            if fault:
                faults[f"{_shown(inside)}: {fault}"] = None
            elif fault is None:
                name = os.fsencode(inside)
                files[name] = SourceFile(path=name, location=os.path.realpath(path))
    declared = tuple(Path(output) for output in outputs)
    beside = [
        path
        for path in _files(root, follow=False)
        if path not in untouched and not any(path.relative_to(root).is_relative_to(folder) for folder in declared)
    ]
    not_kept = [listed(list(faults))] if faults else []
    if beside:
        not_kept.append(f"{_BESIDE}{listed(_fold(root, beside))}")
    return Outputs(files=tuple(files.values()), not_kept=tuple(not_kept))


def candidates(messages: Iterable[str]) -> list[str]:
    """Return the folders and files that [run] outputs lacks, from messages of the kind NOT_KEPT."""
    texts = [_FOLDED.sub("", text.removeprefix(_BESIDE)) for text in messages if text.startswith(_BESIDE)]
    written = [name for text in texts for name in text.split(", ")]
    return list(dict.fromkeys(name.partition("/")[0] for name in written[:_LISTED]))


def _fold(root: Path, paths: Iterable[Path]) -> list[str]:
    """Return the names of files, and one line for each folder of `root` that has many of them."""
    by_folder: dict[str, list[Path]] = {}
    for path in sorted(paths):
        by_folder.setdefault(_shown(Path(path.relative_to(root).parts[0])), []).append(path)
    lines = []
    for folder, files in by_folder.items():
        if len(files) > _FEW:
            size_bytes = sum(map(_size_bytes, files))
            lines.append(f"{folder}/ ({len(files):,} files, {size_bytes / 1e6:,.1f} MB)")
        else:
            lines += [_shown(path.relative_to(root)) for path in files]
    return lines


def _size_bytes(path: Path) -> int:
    """Return the size of a file; 0 if the running script has removed it."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def listed(names: Sequence[str], separator: str = ", ", most: int = _LISTED) -> str:
    """Return the first `most` names, and the number of others."""
    more = f"{separator}and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def shown(path: bytes) -> str:
    """Return a path as text for people."""
    return path.decode("utf-8", "backslashreplace")


def _fault(root: Path, path: Path, untouched: set[Path], begun_ns: int) -> str | None:
    """Return the reason not to keep a path: empty for an unchanged input, None for a result."""
    if _NEVER.intersection(path.relative_to(root).parts):
        return "not kept, because of its name"
    real = Path(os.path.realpath(path))
    if real in untouched:
        return "" if path in untouched else "a link to an input"
    try:
        status = real.stat()
    except OSError:
        return "" if path in untouched else "a broken link"
    if stat.S_ISDIR(status.st_mode):
        return "a link to a folder around it"
    if not stat.S_ISREG(status.st_mode):
        return "neither a file nor a folder"
    if not real.is_relative_to(root) and status.st_ctime_ns < begun_ns:
        return "a link to a file from before the run"
    return None


def _files(top: Path, *, follow: bool = True, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield all paths below `top` that are not folders, or `top` itself. With `follow`, links to folders are walked."""
    real = os.path.realpath(top)
    if not top.is_dir() or real in above or (top.is_symlink() and not follow):
        if os.path.lexists(top):
            yield top
        return
    try:
        names = sorted(os.listdir(top))
    except OSError:
        yield top
        return
    for name in names:
        if name != _CACHE and (follow or name not in _NEVER):
            yield from _files(top / name, follow=follow, above=above | {real})


def _shown(path: Path) -> str:
    return shown(os.fsencode(path))
