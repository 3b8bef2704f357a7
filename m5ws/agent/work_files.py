"""Removal of files in work directories of ended attempts, if the store has them.

Invariant: a file is removed only if the store has its content under its path: in the output files of the attempt, or in
the run's snapshot. All other files stay, such as files that a script wrote outside of `[run] outputs`.
"""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from m5ws.agent import run_lock
from m5ws.agent.delivery import DELIVERED
from m5ws.errors import M5Error
from m5ws.records.checkpoint import Content
from m5ws.records.tree import Entry
from m5ws.repository.files import trees
from m5ws.repository.objects import Objects
from m5ws.repository.references import outputs, runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.work import directories, inputs

_log = logging.getLogger(__name__)
_PIECE_BYTES = 2**22


class RemovedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Removed files of work directories and their bytes, and the number of the files that stay."""

    files: int = 0
    size_bytes: int = 0
    left: int = 0


def remove_outputs(repo: Repository, run: str, attempt: int, directory: Path) -> RemovedFiles:
    """Remove the stored output files of an attempt that has just ended. An error or Ctrl-C leaves them to gc."""
    try:
        return _remove(repo, directory, _output_files(repo, run, attempt), dry_run=False)
    except (M5Error, OSError, KeyboardInterrupt) as error:
        _log.warning("output files of run %s stay in its work directory: %s", run, repr(error))
        return RemovedFiles()


def remove_old(repo: Repository, home: Path, older_than_s: float, *, dry_run: bool = False) -> RemovedFiles:
    """Remove stored output files and inputs of attempts that were delivered so long ago; with `dry_run`, none.

    Runs that are alive or unreadable are left out.
    """
    removed = list[RemovedFiles]()
    for run_dir in sorted((home / "runs").glob("*")):
        try:
            with run_lock.lock_run(run_dir, wait_s=0.0):
                for directory in sorted(run_dir.glob("[0-9][0-9][0-9][0-9]")):
                    if _is_old(directory, older_than_s):
                        stored = _all_files(repo, run_dir.name, directory)
                        removed.append(_remove(repo, directory, stored, dry_run=dry_run))
        except run_lock.RunAlive:
            continue
        except (M5Error, OSError) as error:
            _log.warning("the work directories of run %s stay: %s", run_dir.name, error)
    return RemovedFiles(
        files=sum(each.files for each in removed),
        size_bytes=sum(each.size_bytes for each in removed),
        left=sum(each.left for each in removed),
    )


def remove_inputs(home: Path) -> None:
    """Remove the unchanged inputs of attempts that were delivered. Runs that are alive are left out."""
    for run_dir in sorted((home / "runs").glob("*")):
        with suppress(run_lock.RunAlive, OSError), run_lock.lock_run(run_dir, wait_s=0.0):
            for directory in sorted(run_dir.glob("[0-9][0-9][0-9][0-9]")):
                work = directories.folder_of(directory)
                if work is not None and _is_old(directory, 0.0) and (given := inputs.load(directory, work)):
                    inputs.remove(work, given.stamps)


def _is_old(directory: Path, older_than_s: float) -> bool:
    """Return True if an attempt with a work directory was delivered so long ago."""
    mark = directory / DELIVERED
    return (directory / "work").is_dir() and mark.exists() and time.time() - mark.stat().st_mtime >= older_than_s


def _all_files(repo: Repository, run: str, directory: Path) -> list[Entry]:
    """Return the output files of an attempt and the inputs of its run."""
    snapshot = snapshots.load(repo, runs.load(repo, run).snapshot)
    return [*_output_files(repo, run, int(directory.name)), *snapshots.entries(repo, snapshot)]


def _output_files(repo: Repository, run: str, attempt: int) -> list[Entry]:
    """Return the final output files of an attempt in the store, of all nodes; none if it has none."""
    labels = [label for label in outputs.names(repo, run) if outputs.attempt_of(label) == attempt]
    records = [outputs.find(repo, run, label)[1] for label in filter(outputs.is_final, labels)]
    found = [repo.objects.get_record(record.content, Content).tree for record in records]
    return [entry for tree in found if tree is not None for entry in trees.load(repo.objects, tree).entries]


def _remove(repo: Repository, directory: Path, stored: list[Entry], *, dry_run: bool) -> RemovedFiles:
    known: dict[bytes, list[Entry]] = {}
    for entry in stored:
        known.setdefault(entry.path, []).append(entry)
    work = directories.folder_of(directory)
    if work is None:
        return RemovedFiles()
    paths = list(_files(work))
    entries = {path: known.get(os.fsencode(path.relative_to(work)), []) for path in paths}
    done = [path for path in paths if any(_is_stored(repo.objects, path, entry) for entry in entries[path])]
    size_bytes = sum(path.lstat().st_size for path in done)
    if not dry_run:
        # Links first. After a kill, a link to a removed file could not be compared.
        for path in sorted(done, key=lambda path: not path.is_symlink()):
            path.unlink()
        _remove_empty(directory, work)
    return RemovedFiles(files=len(done), size_bytes=size_bytes, left=len(paths) - len(done))


def _files(work: Path) -> Iterator[Path]:
    """Yield all that is not a folder. Links are not followed."""
    for folder, names, files in os.walk(work):
        links = (name for name in names if os.path.islink(os.path.join(folder, name)))
        yield from (Path(folder, name) for name in (*files, *links))


def _is_stored(objects: Objects, path: Path, entry: Entry) -> bool:
    """Return True if a file has the content of an entry, or the link its target. Raises OSError."""
    if entry.link is not None:
        return path.is_symlink() and os.fsencode(os.readlink(path)) == entry.link
    # The content behind a link is a result, as in the collection of output files.
    if not path.is_file() or path.stat().st_size != entry.size_bytes:
        return False
    hasher = objects.hasher()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            hasher.update(piece)
    return hasher.hexdigest() == entry.digest


def _remove_empty(directory: Path, work: Path) -> None:
    """Remove empty folders, and the work directory itself if nothing is left in it."""
    for folder, _, _ in os.walk(work, topdown=False):
        with suppress(OSError):  # something is left in it
            os.rmdir(folder)
    if not work.exists():
        directories.remove(directory)
