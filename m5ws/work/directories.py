"""Work directories of attempts: below one private folder of the user, outside any checkout (docs/design/0018).

An attempt has a number there until it ends. `work` in the attempt's directory is a link to its work directory. If the
launcher can mount, its processes see the number's folder as number 0. Otherwise a run, its resumes and its replays
share the run's number, which no other run gets. So an absolute path that a script stored never leads to another run's
files. Only attempts that run at the same time differ, in paths of equal length.
"""

import errno
import logging
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from m5ws.errors import UsageError
from m5ws.records.base import RunId

_log = logging.getLogger(__name__)
_MARK = "m5ws-"
_WORK = "work"
_ATTEMPT = ".m5ws-attempt"
"""Name of a file beside a work directory with the path of the attempt's directory."""
_TEMPORARY = "temporary"
_BESIDE = "beside"
"""Name of the folder in an attempt's directory for files that a script wrote beside the work directory."""
RESTORED = ".m5ws-restored"
"""Name of a folder beside a work directory for files on their way into it."""
_SHIFT = 8
"""Bits of a number besides the run's id, which has 48."""
_ENDED = 1 << 63
"""The first number for ended attempts whose own directory is on another file system."""
_HINT = "Set [run] work_dir in m5ws.toml to another folder, or XDG_STATE_HOME for all workspaces."


class WorkDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A work directory at `path`. Its processes see it as `seen`."""

    path: Path
    seen: Path

    @property
    def mount(self) -> tuple[str, str] | None:
        """The source and target of the mount for the processes; None if there is none.

        The folder around the work directory is mounted, so that `..` is the attempt's own too.
        """
        return (str(self.path.parent), str(self.seen.parent)) if self.seen != self.path else None


def make(
    root: Path, attempt: Path, run: RunId, author: Path, can_mount: Callable[[str, str], bool], start: str = "."
) -> WorkDirectory:
    """Create the empty work directory of the attempt with the directory `attempt`.

    `run` is the attempt's run; for a replay, the run that it reproduces. `start` is the folder of the work directory in
    which processes start. Raises UsageError if `root` is inside
    `author`, the checkout, belongs to another user, or is not writable.
    """
    try:
        root = _private(root, author)
        seen = _home(root, 0) / _WORK
        # A process starts in the folder before the mount, and again after it.
        (seen / start).mkdir(parents=True, exist_ok=True)
        path = _claim(root, attempt, run) / _WORK
        path.mkdir()
        (attempt / _WORK).symlink_to(path)
    except OSError as error:
        raise UsageError(f"no work directory could be created in {root}: {error}", hint=_HINT) from error
    mounted = WorkDirectory(path=path, seen=seen)
    return mounted if can_mount(*(mounted.mount or ())) else WorkDirectory(path=path, seen=path)


def find(attempt: Path) -> WorkDirectory | None:
    """Return the work directory of an attempt that has not released its number; None if there is none."""
    home = _own(attempt)
    if home is None or _has_ended(home):
        return None
    return WorkDirectory(path=home / _WORK, seen=_home(home.parent, 0) / _WORK)


def find_attempts(root: Path, run: RunId) -> list[Path]:
    """Return the directories of a run's attempts with numbers below `root`, in any workspace of this machine."""
    homes = root.glob(f"{_home(root, int(run, 16) << _SHIFT).name[:-2]}??")
    marks = (home / _ATTEMPT for home in homes)
    attempts = [Path(os.fsdecode(mark.read_bytes())) for mark in marks if mark.exists()]
    # A replay's number is its original's.
    return [attempt for attempt in attempts if attempt.parent.name == run and _own(attempt) is not None]


def keep_links(work: WorkDirectory) -> None:
    """Make links relative that a script made with absolute paths into its own work directory.

    Otherwise they would be broken, or lead into another attempt's work directory, after this attempt.
    """
    for folder, names, files in os.walk(work.path):
        for link in (os.path.join(folder, name) for name in (*names, *files)):
            with suppress(OSError):  # not a link, or in a folder without permissions
                inside = _inside(work, Path(os.readlink(link)))
                if inside is not None:
                    os.unlink(link)
                    os.symlink(os.path.relpath(inside, folder), link)


def _inside(work: WorkDirectory, target: Path) -> Path | None:
    tops = (top for top in (work.seen, work.path) if target.is_relative_to(top))
    return next((work.path / target.relative_to(top) for top in tops), None)


def end(attempt: Path) -> None:
    """Release an attempt's number after its last process has ended.

    The remaining files move into its own directory, as `work` and `beside`. On another file system `work` stays.
    """
    _remove_temporary(attempt)
    home, aside = _own(attempt), attempt / f".{_WORK}"
    try:
        if home is not None and not _has_ended(home):
            if (home / _WORK).exists() and not _moved(home / _WORK, aside):
                _keep_beside(attempt, home)
                return _keep(attempt, home)
            _keep_beside(attempt, home)
            remove(attempt)
        if aside.exists():
            if not (attempt / _WORK).exists():
                (attempt / _WORK).unlink(missing_ok=True)  # A broken link, after a kill in `remove`.
            aside.rename(attempt / _WORK)
    except OSError as error:
        _log.warning("the files of attempt %s stay in its work directory: %s", attempt, error)
    return None


def remove(attempt: Path) -> None:
    """Remove the work directory of an attempt and its content, if it has one of its own. Files beside it stay."""
    _remove_temporary(attempt)
    if (home := _own(attempt)) is not None:
        shutil.rmtree(home / _WORK if _others(home) else home, ignore_errors=True)
        (attempt / _WORK).unlink()


def folder_of(attempt: Path) -> Path | None:
    """Return the folder with an attempt's files; None if there is none, or if a script put a link in its place."""
    home, work = _own(attempt), attempt / _WORK
    folder = home / _WORK if home is not None else work
    return folder if folder.is_dir() and not folder.is_symlink() else None


def beside(attempt: Path) -> list[Path]:
    """Return the files and folders beside an attempt's work directory, each at the place where it is kept."""
    home, kept = _own(attempt), attempt / _BESIDE
    waiting = _others(home) if home is not None else []
    return sorted({*(kept.iterdir() if kept.is_dir() else ()), *(kept / entry.name for entry in waiting)})


def make_temporary(attempt: Path) -> Path:
    """Create the temporary folder of an attempt, to which its directory links. A socket's path is at most 108 bytes.

    The name contains the inode of the attempt's directory, so that a copy of the directory removes nothing.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{_MARK}{attempt.stat().st_ino:x}-")).resolve()
    (attempt / _TEMPORARY).symlink_to(folder)
    return folder


def _remove_temporary(attempt: Path) -> None:
    link = attempt / _TEMPORARY
    if link.is_symlink() and link.readlink().name.startswith(f"{_MARK}{attempt.stat().st_ino:x}-"):
        shutil.rmtree(link.readlink(), ignore_errors=True)
        link.unlink()


def _others(home: Path) -> list[Path]:
    return [entry for entry in home.iterdir() if entry.name not in (_WORK, _ATTEMPT) and RESTORED not in entry.name]


def _keep_beside(attempt: Path, home: Path) -> None:
    for entry in _others(home):
        (attempt / _BESIDE).mkdir(exist_ok=True)
        shutil.move(entry, attempt / _BESIDE / entry.name)


def _moved(source: Path, target: Path) -> bool:
    """Move a folder. Return False if the target is on another file system."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _keep(attempt: Path, home: Path) -> None:
    kept = _home(home.parent, _ENDED | int.from_bytes(os.urandom(7), "big"))
    # The link first. After a kill in between it is broken, and never leads to another attempt's directory.
    link = attempt / f".{_WORK}"
    link.symlink_to(kept / _WORK)
    link.replace(attempt / _WORK)
    home.rename(kept)


def _has_ended(home: Path) -> bool:
    return int(home.name.rpartition("-")[2], 16) >= _ENDED


def _home(root: Path, number: int) -> Path:
    return root / f"{_MARK}{number:016x}"


def _claim(root: Path, attempt: Path, run: RunId) -> Path:
    """Create the folder of the lowest free number of a run. The process that creates it owns it. Raises OSError."""
    for home in (_home(root, int(run, 16) << _SHIFT | number) for number in range(1, 1 << _SHIFT)):
        try:
            home.mkdir()
        except FileExistsError:
            continue
        (home / _ATTEMPT).write_bytes(os.fsencode(os.path.realpath(attempt)))
        return home
    raise OSError(errno.EEXIST, f"run {run} has too many attempts at the same time")


def _own(attempt: Path) -> Path | None:
    """Return the folder around an attempt's work directory; None if it has none, or if `attempt` is a copy."""
    try:
        home = (attempt / _WORK).readlink().parent
        is_own = (home / _ATTEMPT).read_bytes() == os.fsencode(os.path.realpath(attempt))
    except OSError:
        return None
    return home if is_own else None


def _private(root: Path, author: Path) -> Path:
    """Return `root` with links resolved, created for its user alone. Raises OSError, UsageError."""
    root = Path(os.path.realpath(root))
    if root.is_relative_to(os.path.realpath(author)):
        raise UsageError(f"the folder for work directories, {root}, is inside the workspace", hint=_HINT)
    root.parent.mkdir(parents=True, exist_ok=True)
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.stat()
    if status.st_uid != os.geteuid():
        raise UsageError(f"the folder for work directories, {root}, belongs to another user", hint=_HINT)
    if stat.S_IMODE(status.st_mode) & 0o077:
        # Never for a shared folder such as /tmp, which other programs need.
        is_own = all(name.startswith(_MARK) for name in os.listdir(root))
        hint = f"`chmod 700 {shlex.quote(str(root))}`. {_HINT}" if is_own else _HINT
        raise UsageError(f"{root} is not private: other users may read or change its files", hint=hint)
    return root
