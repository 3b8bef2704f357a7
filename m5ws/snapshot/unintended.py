"""Warnings about files that a snapshot would contain, and that are rarely meant as code.

They are large files, folders with many files, and the file to which this process prints. Only files that differ from
the commit count, or all files without a commit. Each warning has the line for `.gitignore`.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator

from m5ws.repository.files.interface import SourceFile

LARGE_BYTES = 100 * 10**6
MANY = 100
"""Number of files of a folder in the workspace from which it is named."""


def warnings(files: Iterable[SourceFile], changed: Iterable[bytes], *, has_commit: bool) -> Iterator[str]:
    """Yield a warning for each unintended file or folder. `changed` are the paths that differ from the commit."""
    differing = frozenset(changed)
    candidates = [file for file in files if not has_commit or file.path in differing]
    counts = Counter(_folder(file.path) for file in candidates)
    crowded = {folder for folder, count in counts.items() if folder and count >= MANY}
    streams = _streams()
    for file in candidates:
        try:
            status = os.lstat(file.location)
        except OSError:
            continue
        if (status.st_dev, status.st_ino) in streams:
            yield _warning(file.path, "the output of this command goes to this file")
        elif stat.S_ISREG(status.st_mode) and status.st_size > LARGE_BYTES and _folder(file.path) not in crowded:
            yield _warning(file.path, f"{status.st_size / 1e6:,.0f} MB")
    for folder in sorted(crowded):
        yield _warning(folder + b"/", f"{counts[folder]:,} files")


def _warning(path: bytes, fact: str) -> str:
    name = path.decode("utf-8", "backslashreplace")
    return f"{name} is captured with the code ({fact}). To leave it out, add the line /{name} to .gitignore"


def _folder(path: bytes) -> bytes:
    """Return the folder of the workspace that contains a path; empty for a file beside the folders."""
    first, slash, _ = path.partition(b"/")
    return first if slash else b""


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
