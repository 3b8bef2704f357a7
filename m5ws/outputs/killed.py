"""Output files of an attempt that was killed together with its supervisor. They are still in its work directory.

A later process, which holds the run's lock, stores them as the supervisor would have done: as the kill left them.
"""

import logging
import os
import time
from pathlib import Path

from m5ws.errors import M5Error
from m5ws.outputs import collect, storing, unsaved
from m5ws.outputs.collect import Outputs
from m5ws.records.ledger import Notice, NoticeKind
from m5ws.records.run import Run
from m5ws.repository.ledger import ledger
from m5ws.repository.publishing import repeated
from m5ws.repository.references import outputs as stored_outputs
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository
from m5ws.work import inputs

_DONE = "ranks-done"
"""Name of a file in an attempt's directory. The file exists if all ranks have ended well, with all checkpoints stored.

Ends of ranks in the ledger do not prove it: after a kill of m5ws, a script may end well in the middle, because of the
signal that its ranks get.
"""
_log = logging.getLogger(__name__)


def mark_done(directory: Path) -> None:
    """Record that the ranks of an attempt have ended well, and that only its output files are left to store."""
    (directory / _DONE).touch()


def is_done(repo: Repository, run: str, attempt: int, directory: Path) -> bool:
    """Return True if the ranks of an attempt had ended well before the kill, and no newer attempt has begun."""
    return (directory / _DONE).exists() and max(ledger.attempts(repo, run), default=0) == attempt


def store(repo: Repository, run: str, attempt: int, directory: Path, node: int = 0) -> list[Notice]:
    """Store the output files of a node of a killed attempt, and return notices for its ledger.

    Nothing is stored for a replay, which is never resumed, or if a newer attempt has begun. If the store does not take
    the files, they wait on this machine (`unsaved`). Raises M5Error if the store cannot be read.
    """
    record, work = runs.load(repo, run), Path(os.path.realpath(directory / "work"))
    # Without a record, the kill came before the launch.
    given = inputs.load(directory, work) if work.is_dir() else None
    if given is None or record.purpose == "reproduce" or max(ledger.attempts(repo, run), default=0) > attempt:
        return []
    changed = inputs.modified(work, given.stamps)
    notices: list[tuple[NoticeKind, str]] = [("input-modified", inputs.describe_modified(path)) for path in changed]
    try:
        left = collect.collect(work, record.spec.outputs, given)
        others = collect.describe_others(directory, work, record.spec.outputs, given.stamps, left)
        notices += [("outputs-not-kept", line) for line in others]
        _store(repo, record, (attempt, node), directory, left)
    except (M5Error, OSError, ValueError) as error:
        notices.append(("outputs-not-stored", f"the output files were not stored: {error}"))
    return [Notice(time_s=time.time(), kind=kind, message=message) for kind, message in notices]


def _store(repo: Repository, run: Run, place: tuple[int, int], directory: Path, left: Outputs) -> None:
    """Publish files as the final output files of an attempt and node, unless it has some."""
    attempt, node = place
    if stored_outputs.name(attempt, node=node) in stored_outputs.names(repo, run.id):
        # The supervisor, or an earlier recovery, was killed after the publication.
        return
    if left.files:
        _log.warning("run %s was killed: storing the output files of attempt %d", run.id, attempt)
    waiting = directory / unsaved.OUTPUTS
    storing.wait(waiting, left)
    repeated(lambda: storing.publish(repo, run, attempt, left, node))
    waiting.unlink()
