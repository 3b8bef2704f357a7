"""Warnings about files that a snapshot would contain, and that are rarely meant as code.

They are large files, virtual environments, the folders of trackers, and the file to which this process prints. Only
files that differ from the commit count, or all files without a commit. Each warning has the line for `.gitignore`.
"""

import os
import stat
from collections.abc import Iterable, Iterator

import msgspec

from m5ws.repository.files.interface import SourceFile

LARGE_BYTES = 100 * 10**6
_TRACKERS = frozenset((b"wandb", b"mlruns", b"lightning_logs"))
_ENVIRONMENT = b"pyvenv.cfg"


class _Folder(msgspec.Struct):
    """A folder to name, with the number and total size of its files."""

    kind: str
    files: int = 0
    size_bytes: int = 0


def warnings(files: Iterable[SourceFile], changed: Iterable[bytes], *, has_commit: bool) -> Iterator[str]:
    """Yield a warning for each unintended file or folder. `changed` are the paths that differ from the commit."""
    differing = frozenset(changed)
    candidates = [file for file in files if not has_commit or file.path in differing]
    folders = {os.path.dirname(f.path): _Folder("a virtual environment") for f in candidates if _is_environment(f.path)}
    folders |= {path: _Folder("the folder of a tracker") for f in candidates if (path := _tracker(f.path)) is not None}
    streams = _streams()
    for file in candidates:
        try:
            status = os.lstat(file.location)
        except OSError:
            continue
        if (outer := _around(file.path, folders)) is not None:
            folders[outer].files += 1
            folders[outer].size_bytes += status.st_size
        elif (status.st_dev, status.st_ino) in streams:
            yield _warning(file.path, "the output of this command goes to this file")
        elif stat.S_ISREG(status.st_mode) and status.st_size > LARGE_BYTES:
            yield _warning(file.path, f"{status.st_size / 1e6:,.0f} MB")
    for path, folder in sorted(folders.items()):
        if not folder.files:
            continue  # inside another one
        size = f"{folder.files:,} files, {folder.size_bytes / 1e6:,.1f} MB"
        yield _warning(path + b"/", f"{folder.kind}, {size}")


def _warning(path: bytes, fact: str) -> str:
    name = path.decode("utf-8", "backslashreplace")
    return f"{name} is captured with the code ({fact}). To leave it out, add the line /{name} to .gitignore"


def _is_environment(path: bytes) -> bool:
    return os.path.basename(path) == _ENVIRONMENT and path != _ENVIRONMENT


def _tracker(path: bytes) -> bytes | None:
    """Return the outermost folder of a tracker in a path."""
    parts = path.split(b"/")[:-1]
    first = next((number for number, part in enumerate(parts) if part in _TRACKERS), None)
    return b"/".join(parts[: first + 1]) if first is not None else None


def _around(path: bytes, folders: dict[bytes, _Folder]) -> bytes | None:
    """Return the outermost of `folders` that contains a path."""
    if not folders:
        return None
    parts = path.split(b"/")
    outer = (b"/".join(parts[:length]) for length in range(1, len(parts)))
    return next((folder for folder in outer if folder in folders), None)


def _streams() -> set[tuple[int, int]]:
    """Return device and inode of the files to which stdout and stderr of this process are redirected."""
    streams = set()
    for descriptor in (1, 2):
        try:
            status = os.fstat(descriptor)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            streams.add((status.st_dev, status.st_ino))
    return streams
