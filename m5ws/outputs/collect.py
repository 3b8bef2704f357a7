"""The output files of an attempt: all that it left in the files and folders of `[run] outputs`.

Nothing is left out by its size, name or format. Unchanged files of the snapshot are inputs, in any folder. All other
files of the attempt are listed and not kept.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from m5ws.filesystem import Stamp, stamp
from m5ws.repository.files import validation
from m5ws.repository.files.interface import SourceFile
from m5ws.wording.lists import list_names
from m5ws.work import directories, inputs
from m5ws.work.inputs import AttemptInputs

_NEVER = {".git", ".m5ws"}
_LONG = 100
"""Number of characters of a forbidden path that a notice shows."""
_FEW = 3
"""Number of files in a folder that are listed by name."""


class Outputs(msgspec.Struct, frozen=True, kw_only=True):
    """The output files of an attempt at one moment, by their paths in the work directory.

    `files` has the content to store; for a link, the content of its target. A resume gets the `links` in their
    place, with their targets, and the `folders`, with modification times in nanoseconds. `restored` has the files and
    links that are as an earlier attempt left them. `not_kept` lists other files, in words.
    """

    files: tuple[SourceFile, ...]
    folders: tuple[tuple[bytes, int], ...] = ()
    links: tuple[tuple[bytes, bytes], ...] = ()
    restored: tuple[bytes, ...] = ()
    not_kept: tuple[str, ...] = ()

    def stamps(self) -> dict[bytes, Stamp]:
        """Return the stamps of the files. Equal stamps mean equal files, if they are settled."""
        return {file.path: stamp(status(file)) for file in self.files}


def status(file: SourceFile) -> os.stat_result:
    """Return the status of a collected file at the moment of its collection. Raises OSError."""
    return file.found or os.stat(file.location)


def collect(work: Path, outputs: Sequence[str], given: AttemptInputs) -> Outputs:
    """Return the outputs in `work` of an attempt with the inputs `given`. Raises OSError.

    A file outside `work` behind a link is a result if it changed after the start.
    """
    root = work.resolve()
    untouched, restored = (
        {root / path.relative_to(work) for path in inputs.untouched(work, stamps)}
        for stamps in (given.stamps, given.restored)
    )
    files, folders, links = dict[bytes, SourceFile](), dict[bytes, int](), dict[Path, bytes]()
    faults, kept = dict[str, None](), set[bytes]()
    for output in outputs:
        for path, is_linked in _walk(root / output):
            inside = path.relative_to(root)
            name = os.fsencode(inside)
            if path != root and validation.is_forbidden(name):
                faults[f"{shown(inside)[:_LONG]}: the store keeps no file of this name or depth"] = None
                continue
            if path.is_symlink() and not is_linked:
                links[path] = os.fsencode(os.readlink(path))
            if restored and (path if path in links else Path(os.path.realpath(path))) in restored:
                kept.add(name)
            if path.is_dir():
                if not (is_linked or path.is_symlink() or path == root):
                    folders[name] = path.stat().st_mtime_ns
                continue
            file, fault = _file(root, path, untouched, given.begun_ns)
            files |= {name: file} if file is not None else {}
            faults |= {f"{shown(inside)}: {fault}": None} if fault else {}
    return Outputs(
        files=tuple(files.values()),
        folders=tuple(folders.items()),
        links=tuple(_own_links(root, outputs, links, files)),
        restored=tuple(sorted(kept)),
        not_kept=(list_names(list(faults)),) if faults else (),
    )


def collect_left(directory: Path, outputs: Sequence[str]) -> Outputs | None:
    """Return the outputs that an ended attempt left in its `directory`; None if it was not launched there.

    Raises OSError.
    """
    work = Path(os.path.realpath(directory / "work"))
    given = inputs.load(directory, work) if work.is_dir() else None
    return collect(work, outputs, given) if given is not None else None


def describe_others(
    directory: Path, work: Path, declared: Sequence[str], given: dict[Path, Stamp], outputs: Outputs
) -> list[str]:
    """Return lines on the files that an attempt with this `directory` wrote and that are not kept."""
    beside = [f"../{shown(entry.name)}" for entry in directories.beside(directory)]
    names = [*_others(work, declared, inputs.untouched(work, given)), *beside]
    return [*outputs.not_kept, *([f"written outside [run] outputs: {list_names(names)}"] if names else [])]


def shown(path: bytes | str | Path) -> str:
    """Return a path as text for people."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def folders_of(path: bytes) -> list[bytes]:
    """Return the folders around a path, outermost first."""
    parts = path.split(b"/")
    return [b"/".join(parts[:count]) for count in range(1, len(parts))]


def _walk(top: Path, above: frozenset[str] = frozenset(), *, is_linked: bool = False) -> Iterator[tuple[Path, bool]]:
    """Yield all paths from `top` down, and whether each is behind a link. Links to folders are followed once."""
    real = os.path.realpath(top)
    if os.path.lexists(top):
        yield top, is_linked
    if top.is_dir() and real not in above and top.name not in _NEVER:
        for name in sorted(os.listdir(top)):
            yield from _walk(top / name, above | {real}, is_linked=is_linked or top.is_symlink())


def _file(root: Path, path: Path, untouched: set[Path], begun_ns: int) -> tuple[SourceFile | None, str]:
    """Return the result at a path, if it is one, and the reason not to keep it, which is empty for inputs."""
    real = Path(os.path.realpath(path))
    if real in untouched or (path.is_symlink() and not real.exists()):
        return None, ""
    found = real.stat()
    if not stat.S_ISREG(found.st_mode):
        return None, "neither a file nor a folder"
    if not real.is_relative_to(root) and found.st_ctime_ns < begun_ns:
        return None, "a link to a file from before the run"
    return SourceFile(path=os.fsencode(path.relative_to(root)), location=str(real), found=found), ""


def _own_links(
    root: Path, outputs: Sequence[str], links: dict[Path, bytes], files: dict[bytes, SourceFile]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the links that a resume gets as links: into the outputs, or to no stored file.

    In place of any other link, a resume gets the files behind it.
    """
    filled = {place for name in files for place in (*folders_of(name), name)}
    for path, target in links.items():
        name = os.fsencode(path.relative_to(root))
        if name not in filled or any(Path(os.path.realpath(path)).is_relative_to(root / top) for top in outputs):
            yield name, target


def _others(work: Path, declared: Sequence[str], untouched: set[Path]) -> list[str]:
    """Return the files of an attempt outside its outputs by name, and one line for each folder that has many."""
    tops = [work / output for output in declared]
    names, counts = list[Path](), Counter[str]()
    for folder, folders, files in os.walk(work):
        folders[:] = sorted(name for name in folders if name not in _NEVER and Path(folder, name) not in tops)
        links = (name for name in folders if os.path.islink(os.path.join(folder, name)))
        paths = (Path(folder, name) for name in sorted((*files, *links)))
        names += [path.relative_to(work) for path in paths if path not in untouched and path not in tops]
    counts.update(name.parts[0] for name in names)
    lines = dict[str, None]()
    for name in names:
        many = counts[name.parts[0]] > _FEW
        lines[f"{shown(name.parts[0])}/ ({counts[name.parts[0]]:,} files)" if many else shown(name)] = None
    return sorted(lines)
