"""Work directories of attempts: below one private folder of the user, outside any checkout (docs/design/0018).

An attempt has a number there until it ends, and `work` in its own directory is a link to its work directory. Where the
launcher can mount, its processes see that under number 0. Elsewhere a run, its resumes and its replays have the number
of the run, which no other run ever has: an absolute path that a script wrote down never leads to another run's files.
Only those that run at the same time differ, in paths of one length that `ignored.without_place` recognises.
"""

import errno
import logging
import os
import shlex
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from m5ws.errors import UsageError
from m5ws.records.base import RunId

_log = logging.getLogger(__name__)
_MARK = "m5ws-"
_WORK = "work"
_ATTEMPT = "attempt"
"""A file of this name beside a work directory has the path of the attempt's directory."""
_SHIFT = 8
"""Bits of a number beside the run's id, which has 48."""
_ENDED = 1 << 63
"""Numbers from here on are of attempts that have ended, and whose own directory is on another file system."""
_HINT = "Name a folder elsewhere as [run] work_dir in m5ws.toml, or let XDG_STATE_HOME name one for all workspaces."


class WorkDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A work directory at `path`; its processes know it as `seen`."""

    path: Path
    seen: Path

    @property
    def mount(self) -> tuple[str, str] | None:
        """What has to be mounted for the processes, and where."""
        return (str(self.path), str(self.seen)) if self.seen != self.path else None


def make(root: Path, attempt: Path, run: RunId, author: Path, can_mount: Callable[[str, str], bool]) -> WorkDirectory:
    """Make the empty work directory of the attempt whose directory is `attempt`, which has none.

    `run` is the run that the attempt is of; of a replay, the run that it reproduces.

    Raises UsageError if `root` is inside `author`, the checkout, is somebody else's, or cannot be written to.
    """
    try:
        root = _private(root, author)
        seen = _home(root, 0) / _WORK
        seen.mkdir(parents=True, exist_ok=True)
        path = _claim(root, attempt, run) / _WORK
        path.mkdir()
        (attempt / _WORK).symlink_to(path)
    except OSError as error:
        raise UsageError(f"no work directory could be made in {root}: {error}", hint=_HINT) from error
    return WorkDirectory(path=path, seen=seen if can_mount(str(path), str(seen)) else path)


def keep_links(work: WorkDirectory) -> None:
    """Make links relative that a script made with absolute paths into its own work directory.

    Else they would lead nowhere, or into the work directory of another attempt, once this one has ended.
    """
    for folder, names, files in os.walk(work.path):
        for link in (os.path.join(folder, name) for name in (*names, *files)):
            with suppress(OSError):  # no link, or in a folder that the script has closed
                inside = _inside(work, Path(os.readlink(link)))
                if inside is not None:
                    os.unlink(link)
                    os.symlink(os.path.relpath(inside, folder), link)


def _inside(work: WorkDirectory, target: Path) -> Path | None:
    tops = (top for top in (work.seen, work.path) if target.is_relative_to(top))
    return next((work.path / target.relative_to(top) for top in tops), None)


def end(attempt: Path) -> None:
    """Give an attempt's number back when none of its processes is alive.

    What it left moves into its own directory, as `work`, or stays where it is if that is on another file system.
    """
    home, aside = _own(attempt), attempt / f".{_WORK}"
    try:
        if home is not None and not _has_ended(home):
            if (home / _WORK).exists() and not _moved(home / _WORK, aside):
                return _keep(attempt, home)
            remove(attempt)
        if aside.exists():
            aside.rename(attempt / _WORK)
    except OSError as error:
        _log.warning("what attempt %s left in its work directory stays where it is: %s", attempt, error)
    return None


def remove(attempt: Path) -> None:
    """Remove the work directory of an attempt, if it has one of its own, with all that is in it."""
    if (home := _own(attempt)) is not None:
        shutil.rmtree(home, ignore_errors=True)
        (attempt / _WORK).unlink()


def _moved(source: Path, target: Path) -> bool:
    """Move a folder; return False if the target is on another file system."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _keep(attempt: Path, home: Path) -> None:
    kept = _home(home.parent, _ENDED | int.from_bytes(os.urandom(7), "big"))
    # First the link: after a kill in between it leads nowhere, and never to what is another attempt's by then.
    link = attempt / f".{_WORK}"
    link.symlink_to(kept / _WORK)
    link.replace(attempt / _WORK)
    home.rename(kept)


def _has_ended(home: Path) -> bool:
    return int(home.name.rpartition("-")[2], 16) >= _ENDED


def _home(root: Path, number: int) -> Path:
    return root / f"{_MARK}{number:016x}"


def _claim(root: Path, attempt: Path, run: RunId) -> Path:
    """Make the folder of the lowest free number of a run: the process that makes it has it. Raises OSError."""
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
    """Return `root` without links on the way, made for its user alone. Raises OSError, UsageError."""
    root = Path(os.path.realpath(root))
    if root.is_relative_to(os.path.realpath(author)):
        raise UsageError(f"work directories would be made in {root}, inside the workspace", hint=_HINT)
    root.parent.mkdir(parents=True, exist_ok=True)
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.stat()
    if status.st_uid != os.geteuid():
        raise UsageError(f"{root}, where runs would be at work, belongs to another user", hint=_HINT)
    if stat.S_IMODE(status.st_mode) & 0o077:
        # Never of a folder that is not for this alone, as /tmp: others need it.
        is_own = all(name.startswith(_MARK) for name in os.listdir(root))
        hint = f"`chmod 700 {shlex.quote(str(root))}`. {_HINT}" if is_own else _HINT
        raise UsageError(f"{root} is not private: others may see or change what is in it", hint=hint)
    return root
