"""The folders in which a framework's trainings save, and the checkpoints that a resume may give to them.

Invariant: a training gets a checkpoint only if no other training saved in its folders: no other call of the framework
in this attempt, no two calls in an earlier one, and no call that began beside checkpoints of another one. The order of
the calls proves nothing, because a script may leave out trainings that are done. All ranks make the same calls, and
have the same context and files, so their choices are equal.
"""

import glob
import os
from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase

import msgspec

from m5ws.records.ledger import RESUME_LIMIT, SHARED_FOLDER, Notice
from m5ws.training.runtime.context import ActiveRank


class Newest(msgspec.Struct, frozen=True):
    """The newest checkpoint in the folders of a training. `is_alone`: no checkpoint there shows another training.

    `lacks` names state that an exact resume needs and the checkpoint does not have.
    """

    path: str
    is_alone: bool = True
    lacks: str | None = None


class TrainingFolders:
    """The folders in which trainings of this process save: absolute patterns of `glob`."""

    def __init__(self, active: ActiveRank) -> None:
        self._active = active
        self._root = os.getcwd()
        self._used = set[str]()
        self._shared = set(active.context.shared_folders)

    def begin(
        self,
        folders: Iterable[str],
        find_newest: Callable[[], Newest | None],
        call: str,
        argument: str,
        is_passed: bool,
    ) -> str | None:
        """Return the checkpoint for a training that begins to save in `folders`, None for the script's own choice.

        It is for the `argument` of a framework's `call`. `is_passed`: the script passes it itself.
        """
        names = [self._name(folder) for folder in folders]
        is_first = not _overlap(names, self._used)
        self._used.update(names)
        if not is_first:
            self._note_shared(names, argument)
            return None
        if is_passed:
            return None
        newest = find_newest()
        if newest is None:
            if self._is_resumed:
                self._report(f"{call} begins with its first step: no checkpoint in {', '.join(names)}")
            return None
        if self._is_resumed and newest.is_alone and not _overlap(names, self._shared):
            given = f"{call}({argument}={self._name(newest.path)!r})"
            self._report(f"the framework continues from its newest checkpoint: {given}")
            if newest.lacks is not None and self._active.rank == 0:
                self._active.notice(
                    RESUME_LIMIT, f"{self._name(newest.path)} has no {newest.lacks}: the resume is not exact"
                )
            return newest.path
        self._note_shared(names, argument)
        if self._is_resumed:
            self._report(
                f"{call} begins with its first step: several trainings saved in {', '.join(names)}, and the newest "
                f"checkpoint may be of another one. Give each training a folder of its own, or pass {argument}"
            )
        return None

    @property
    def _is_resumed(self) -> bool:
        return self._active.context.attempt > 1

    def _name(self, path: str) -> str:
        """Return a path inside the work directory, which is another one in each attempt, from there."""
        relative = os.path.relpath(path, self._root)
        return path if relative.startswith(os.pardir) else relative

    def _note_shared(self, names: Iterable[str], argument: str) -> None:
        """Record that several trainings save in these folders, for later attempts."""
        for name in names:
            if name not in self._shared and self._active.rank == 0:
                message = (
                    f"several trainings save checkpoints in {name}: a resume gives none of them to a training, because "
                    f"it may be of another one. Give each a folder of its own, or pass {argument}"
                )
                self._active.emit(Notice, kind=SHARED_FOLDER, message=message, rank=0, folder=name)
            self._shared.add(name)

    def _report(self, message: str) -> None:
        if self._active.rank == 0:
            self._active.notice("resume", message)


def escape(folder: str) -> str:
    """Return an absolute folder as a pattern of `glob` that matches it alone."""
    return glob.escape(os.path.realpath(os.path.expanduser(folder)))


def _overlap(names: Collection[str], others: Collection[str]) -> bool:
    """Return True if a folder may match two patterns."""
    return any(fnmatchcase(name, other) or fnmatchcase(other, name) for name in names for other in others)
