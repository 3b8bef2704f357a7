"""Work of removed runs on this machine: results that the store does not take any more, until the user drops them.

A recovery marks the directory of such an attempt with `unsaved.KEPT` when the ledger is delivered. `m5ws show` lists
the work, `m5ws fork` starts a new run from a kept checkpoint, and `m5ws rm --drop` deletes the work.
"""

import shutil
from pathlib import Path

import msgspec

from m5ws.errors import UNREADABLE
from m5ws.outputs import unsaved
from m5ws.records.base import Digest
from m5ws.records.launch import UNSAVED
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import closure
from m5ws.work import directories


class KeptWork(msgspec.Struct, frozen=True, kw_only=True):
    """Kept results of one attempt, whose own directory is `directory`.

    `checkpoints` has their names, in order of steps. `files` is the folder with the files that the script wrote.
    """

    run: str
    attempt: int
    directory: str
    checkpoints: tuple[str, ...]
    files: str | None


def find(home: Path, opener: unsaved.Opener, run: str = "*") -> tuple[KeptWork, ...]:
    """Return the kept work in a workspace's `.m5ws`, of one run if given. Asks no store but the kept stores."""
    marks = sorted((home / "runs").glob(f"{run}/*/{unsaved.KEPT}"))
    return tuple(_load(mark.parent, opener) for mark in marks)


def _load(directory: Path, opener: unsaved.Opener) -> KeptWork:
    run, files = directory.parent.name, directories.folder_of(directory)
    try:
        names = checkpoints.names(opener(directory / UNSAVED), run)
    except UNREADABLE:
        names = []
    return KeptWork(
        run=run,
        attempt=int(directory.name),
        directory=str(directory),
        checkpoints=tuple(names),
        files=str(files) if files is not None else None,
    )


def take_checkpoint(
    repo: Repository, home: Path, opener: unsaved.Opener, run: str, step: int | None
) -> tuple[str, Digest] | None:
    """Copy a run's newest kept checkpoint, or the checkpoint after `step`, and return its name and digest.

    None if none is kept. Nothing refers to its objects yet.
    """
    for work in reversed(find(home, opener, run)):
        for name in reversed(work.checkpoints):
            if step in (None, checkpoints.step_of(name)):
                source = opener(Path(work.directory, UNSAVED))
                digest, _ = checkpoints.read(source, run, name)
                unsaved.copy_objects(source, repo, closure.of_checkpoint(source, digest))
                return name, digest
    return None


def drop(work: KeptWork) -> None:
    """Delete kept work. Spools and logs stay. After a kill, the work is still listed, and is dropped again."""
    directory = Path(work.directory)
    unsaved.remove(directory)
    if work.files is not None:
        shutil.rmtree(work.files, ignore_errors=True)
    directories.remove(directory)
    # From here on, the work is not listed.
    (directory / unsaved.KEPT).unlink()


def describe(work: KeptWork) -> str:
    """Return the kept checkpoints, and the folder with files, as text for people."""
    kept = [f"the checkpoint after step {checkpoints.step_of(name)}" for name in work.checkpoints]
    kept += [f"the files in {work.files}"] if work.files is not None else []
    return f"attempt {work.attempt} of run {work.run}: {' and '.join(kept)}"
