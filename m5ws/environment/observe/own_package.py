"""The m5ws package in ranks: a digest of the code that they load, and a copy for rebuilt environments.

Supervisor and ranks exchange records, so they need the same m5ws. A rebuilt environment has the m5ws that builds it,
and not the recorded m5ws (docs/design/0015-environments-made-again.md).
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import blake3

from m5ws import version

NAME = "m5ws"
_PACKAGE = Path(version.__file__).parent
_NOT_IN_RANKS = frozenset((
    "attest", "bisect", "checkpoints", "cli", "diff", "launch", "projects", "reproduce", "runs", "snapshot", "tracking",
    "workspace.py", "__main__.py", "_templates",
))  # fmt: skip


@cache
def code() -> str:
    """Return a digest of the parts of m5ws that ranks load, by path and content; 16 hex digits.

    Compiled files do not count, but their sources: compilers differ from machine to machine.
    """
    return _digest(path for path in _files() if path.parts[0] not in _NOT_IN_RANKS and path.suffix != ".so")


def copy(folder: Path) -> Path:
    """Return a folder for PYTHONPATH, below `folder`, that contains only this m5ws. It is made once.

    It has the entry points of the installed m5ws.
    """
    target = folder / f"{NAME}-{_digest(_files())}"
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=folder))
    try:
        for path in _files():
            (draft / NAME / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_PACKAGE / path, draft / NAME / path)
        _describe(draft / f"{NAME}-{version.__version__}.dist-info")
        draft.chmod(0o755)
        # Published from here on. If another process was first, its copy has the same bytes.
        with suppress(OSError):
            draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def is_copy_of_m5ws(folder: Path) -> bool:
    """Return True if a folder contains only m5ws, and so no code of a run."""
    try:
        names = set(os.listdir(folder))
    except OSError:
        return False
    return NAME in names and all(name == NAME or name.startswith(f"{NAME}-") for name in names)


def _files() -> Iterator[Path]:
    paths = (path.relative_to(_PACKAGE) for path in sorted(_PACKAGE.rglob("*")) if path.is_file())
    return (path for path in paths if "__pycache__" not in path.parts)


def _digest(files: Iterator[Path]) -> str:
    hasher = blake3.blake3()
    for path in files:
        data = (_PACKAGE / path).read_bytes()
        hasher.update(f"{path.as_posix()}\0{len(data)}\0".encode() + data)
    return hasher.hexdigest()[:16]


def _describe(folder: Path) -> None:
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version.__version__}\n")
    try:
        points = metadata.distribution(NAME).read_text("entry_points.txt")
    except metadata.PackageNotFoundError:
        points = None
    if points:
        (folder / "entry_points.txt").write_text(points)
