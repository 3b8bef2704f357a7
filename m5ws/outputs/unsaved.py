"""Results that the store did not take at the end of an attempt. They stay on this machine, and are published later.

The last checkpoint is in a store of its own beside the attempt's spools. Output files stay in the work directory. The
attempt has not finished until both are published.
"""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from m5ws.errors import NotFound
from m5ws.outputs import storing
from m5ws.records.launch import UNSAVED
from m5ws.repository import presence
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints, runs
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import local_copies, transfer

OUTPUTS = "unsaved-outputs"
"""Name of a file in an attempt's directory: the list of output files that the store did not take."""

KEPT = "kept"
"""Name of a file in an attempt's directory. The run is removed, and the results stay until the user drops them."""

Opener = Callable[[Path], Repository]
"""Opens a store in a directory. Raises NotFound if there is none."""

_log = logging.getLogger(__name__)


def waiting(directory: Path) -> bool:
    """Return True if results of an attempt wait on this machine."""
    return (directory / UNSAVED).exists() or (directory / OUTPUTS).exists()


def publish(repo: Repository, run: str, attempt: int, directory: Path, opener: Opener) -> bool:
    """Publish the kept results of an attempt. Return True if the store then has all of them. Raises M5Error, OSError.

    Nothing is published if a newer attempt has begun, because it repeats the steps.
    """
    if max(ledger.attempts(repo, run), default=0) > attempt:
        _log.warning("run %s has a newer attempt: the kept results of attempt %d are not stored", run, attempt)
        return False
    complete = True
    if (directory / UNSAVED).exists():
        complete = _publish_checkpoints(repo, run, directory / UNSAVED, opener)
    if (directory / OUTPUTS).exists():
        written = runs.load(repo, run)
        files = storing.publish_waiting(repo, written, attempt, directory, directory / OUTPUTS)
        complete = complete and files
    return complete


def remove(directory: Path) -> None:
    """Remove the kept results that are in the store, or that no attempt needs."""
    shutil.rmtree(directory / UNSAVED, ignore_errors=True)
    (directory / OUTPUTS).unlink(missing_ok=True)


def _publish_checkpoints(repo: Repository, run: str, folder: Path, opener: Opener) -> bool:
    """Copy and publish the checkpoints in a folder. Return False if it has no complete one."""
    try:
        source = opener(folder)
    except NotFound:
        return False
    names = checkpoints.names(source, run)
    for name in names:
        local_copies.publish(source, repo, run, name)
    return bool(names)


def copy_objects(source: Repository, target: Repository, needs: dict[str, int]) -> None:
    """Copy the objects that a checkpoint needs, as far as the target lacks them."""
    transfer.copy_objects(source, target, needs, presence.missing(target.objects, needs), None)
