"""The output files to store of an attempt that did not finish, none of them a checkpoint file without its end.

So no resume restores a half-written checkpoint. A script that writes each checkpoint to new files has earlier ones that
are complete. A script that overwrites its checkpoint may have it in the stored files alone: then all of that folder's
stored files are put back, since they belong together.
"""

import logging
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from m5ws.errors import M5Error
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.repository import Repository
from m5ws.runs.outputs import checkpoint_formats, outputs, restored_outputs

_log = logging.getLogger(__name__)
WITHOUT_END = "without their end, because the attempt ended while they were written"
"""Begins the notice of half-written files that are not stored."""
_PUT_BACK = "overwritten when the attempt ended, so the stored files of before replace their folders' files"

Notices = list[tuple[str, str]]
"""Kinds of notices, with their messages."""


def select(repo: Repository, run: str, work: Path, files: Sequence[SourceFile]) -> tuple[list[SourceFile], Notices]:
    """Return the files to store of those in the work directory, and notices.

    Where the newest stored output files of the run have a file that lacks its end now, the stored files of its folder
    are put back into the work directory, if they can be read.
    """
    short = [file for file in files if checkpoint_formats.ending(Path(file.location)) == "cut"]
    if not short:
        return list(files), []
    cut, earlier = {file.path for file in short}, list[bytes]()
    try:
        if (stored := restored_outputs.newest(repo, run)) is not None:
            sizes = restored_outputs.sizes(repo, stored)
            # A file that is as long as before was not cut now.
            cut = {file.path for file in short if os.stat(file.location).st_size != sizes.get(file.path)}
            if wanted := _of_one_moment(cut, sizes):
                restored_outputs.put_back(repo, stored, wanted, work)
            earlier = wanted
    except (M5Error, OSError) as error:
        # The complete files are stored in any case, or wait until the store takes them.
        _log.warning("the stored output files of run %s cannot be put back: %s", run, error)
    chosen = {file.path: file for file in files if file.path not in cut}
    chosen |= {path: SourceFile(path=path, location=_location(work, path)) for path in earlier}
    notices = [(outputs.NOT_KEPT, f"{WITHOUT_END}: {_listed(cut - set(earlier))}")] if cut - set(earlier) else []
    if earlier:
        notices.append((outputs.NOT_KEPT, f"{_PUT_BACK}: {_listed(cut & set(earlier))}"))
    return [chosen[path] for path in sorted(chosen)], notices


def _of_one_moment(cut: Collection[bytes], stored: Collection[bytes]) -> list[bytes]:
    """Return the stored files in folders in which a stored file was cut; those that were cut are last.

    If a kill ends their restore, the next one finds a file without its end again.
    """
    folders = {os.path.dirname(path) for path in stored if path in cut}
    return sorted((path for path in stored if os.path.dirname(path) in folders), key=lambda path: (path in cut, path))


def _location(work: Path, path: bytes) -> str:
    return os.path.realpath(work / os.fsdecode(path))


def _listed(paths: Collection[bytes]) -> str:
    return outputs.listed([os.fsencode(path).decode("utf-8", "backslashreplace") for path in sorted(paths)])
