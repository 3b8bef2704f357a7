"""Delivery of data that an attempt left on its machine: after a kill, or if the store or tracker did not answer.

All of it is below `.m5ws/runs`. The next m5ws command in that workspace delivers it, unless the run is alive. A process
without an attempt's own spools never writes into its ledger, because from elsewhere a killed attempt looks alive. A
resume in another workspace of the machine finds the attempt's directory through its work directory.
"""

import logging
import os
import socket
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import msgspec

from m5ws.agent.delivery import DELIVERED, Delivery
from m5ws.agent.run_lock import RANKS_S, Notify, RunAlive, is_own, lock_run, own_node
from m5ws.containers import launcher
from m5ws.errors import M5Error, ObjectExists
from m5ws.filesystem import write_atomically
from m5ws.outputs import killed, merging, unrecorded, unsaved
from m5ws.records import codec
from m5ws.records.failure import EndReason
from m5ws.records.ledger import AttemptEnded, Event, Notice
from m5ws.records.verdict import Verdict
from m5ws.repository import removals
from m5ws.repository.ledger import ledger
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository
from m5ws.tracking.interface import TRACKED
from m5ws.work import directories

VERDICT = "verdict"
"""Name of a file in a run's directory: a verdict that the store did not take."""

UNSAVED_STATUS = 5
"""Exit status of an attempt whose results are not all in the store."""
_log = logging.getLogger(__name__)


class Undelivered(M5Error):
    """The data that a run left on this machine cannot be delivered."""


def finish(repo: Repository, run: str, attempt: int, directory: Path, opener: unsaved.Opener | None = None) -> None:
    """Deliver the remaining events of an attempt without a supervisor, and end it if it was killed before its end.

    If the attempt's own spools are elsewhere, do nothing. With an `opener`, also publish results that the store did
    not take, and the output files of a killed attempt. Results of a removed run stay on this machine.
    """
    if (work := directories.find(directory)) is not None:
        directories.keep_links(work)
    directories.end(directory)
    launcher.remove_left(directory / "logs", os.environ)
    node = own_node(repo, run, attempt, directory) if not (directory / DELIVERED).exists() else None
    if node is None:
        return
    left = Delivery(repo, run, attempt, directory / "spool", node=node)
    left.deliver(final=True)
    if not left.complete:
        return
    is_removed = opener is not None and _is_removed(repo, run)
    if node == 0:
        _end(repo, run, attempt, directory, left, opener, is_removed=is_removed)
    elif opener is not None and not is_removed:  # Only its leader ends an attempt.
        unsaved.remove(directory)
        notices = killed.store(repo, run, attempt, directory, node)
        if late := [*notices, *unrecorded.of_outputs(repo, run, attempt, node)]:
            left.append(late)
    left.finish()
    if is_removed and unsaved.waiting(directory):
        (directory / unsaved.KEPT).touch()


def _end(
    repo: Repository,
    run: str,
    attempt: int,
    directory: Path,
    left: Delivery,
    opener: unsaved.Opener | None,
    *,
    is_removed: bool,
) -> None:
    """Publish the results of the leader of an attempt, and write the end of the attempt, as far as they are missing."""
    complete = False
    if opener is not None and not is_removed and unsaved.waiting(directory):
        complete = unsaved.publish(repo, run, attempt, directory, opener)
    end = ledger.ended(repo, run, attempt)
    if end is None:
        if opener is not None and not is_removed:
            unsaved.remove(directory)
        left.append(_end_killed(repo, run, attempt, directory, left, is_stored=opener is not None))
    elif opener is not None and not is_removed:
        if end.outcome == "unsaved" and complete:
            ended = AttemptEnded(
                time_s=end.time_s, outcome="finished", exit_code=0, heads=end.heads, is_whole=end.is_whole
            )
            left.append([*unrecorded.events(repo, run, attempt), _merged(repo, run, attempt, ended)])
            (directory / TRACKED).unlink(missing_ok=True)
        unsaved.remove(directory)


def _is_removed(repo: Repository, run: str) -> bool:
    """Return True if a run is removed, or a run that it rests on."""
    try:
        removals.fence(repo, run)
    except removals.Removed:
        return True
    return False


def _end_killed(
    repo: Repository, run: str, attempt: int, directory: Path, left: Delivery, *, is_stored: bool
) -> list[Event]:
    """Return the last events of a killed attempt; with `is_stored`, after its output files are published.

    It ended with its last event, however late it is recovered.
    If its ranks had ended well, the attempt has finished, or is unsaved while its output files wait.
    """
    notices: list[Notice] = []
    reason, heads = EndReason(kind="supervisor killed"), left.heads()
    whole = left.nodes == 1
    ended = AttemptEnded(
        time_s=left.last_s, outcome="failed", exit_code=137, reason=reason, heads=heads, is_whole=whole
    )
    if is_stored:
        notices = killed.store(repo, run, attempt, directory)
        if killed.is_done(repo, run, attempt, directory):
            lacking = next((notice.message for notice in notices if notice.kind == "outputs-not-stored"), None)
            ended = msgspec.structs.replace(
                ended,
                outcome="finished" if lacking is None else "unsaved",
                exit_code=0 if lacking is None else UNSAVED_STATUS,
                reason=None if lacking is None else EndReason(kind="unsaved", problem=lacking),
            )
            ended = _merged(repo, run, attempt, ended)
    # After a kill before this batch, the next recovery begins again, and leaves published files as they are.
    return [*notices, *unrecorded.events(repo, run, attempt), ended]


def _merged(repo: Repository, run: str, attempt: int, ended: AttemptEnded) -> AttemptEnded:
    """Return the end of an attempt that finished; a failed end if its nodes left different content at one path."""
    conflict = merging.find_conflict(repo, run, attempt) if ended.outcome == "finished" else None
    if conflict is None:
        return ended
    reason = EndReason(kind="outputs conflict", problem=conflict)
    return msgspec.structs.replace(ended, outcome="failed", exit_code=1, reason=reason)


class NewestAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The newest attempt of a run. Without an end, it may be alive on `host`."""

    run: str
    attempt: int
    host: str
    last_s: float
    """Time of its last event, in seconds since the epoch, by the clock of its host."""
    ended: bool

    def describe_life(self) -> str:
        """Return that the run may be alive, with the place and the last sign of life."""
        ago = timedelta(seconds=round(max(0.0, time.time() - self.last_s)))
        return (
            f"run {self.run} may be alive: attempt {self.attempt} on {self.host} has no end, "
            f"and its last sign of life is {ago} (h:mm:ss) old"
        )


def find_newest(repo: Repository, run: str) -> NewestAttempt | None:
    """Return the newest attempt of a run; None if none has begun."""
    attempt = max(ledger.attempts(repo, run), default=0)
    if not attempt:
        return None
    started = ledger.started(repo, run, attempt)
    last = [next(ledger.backwards(repo, run, attempt, node)) for node in ledger.nodes(repo, run, attempt)]
    events = [event for batch in last for _, event in ledger.decode(batch)] + ([started] if started is not None else [])
    host = started.host if started is not None else "an unknown host"
    last_s = max((event.time_s for event in events), default=0.0)
    ended = ledger.ended(repo, run, attempt) is not None
    return NewestAttempt(run=run, attempt=attempt, host=host, last_s=last_s, ended=ended)


def refuse_elsewhere(repo: Repository, run: str, home: Path) -> None:
    """Raise RunAlive if the newest attempt of a run may be alive in another workspace or on another machine."""
    newest = find_newest(repo, run)
    if newest is None or newest.ended:
        return
    if not is_own(repo, run, newest.attempt, home / "runs" / run / f"{newest.attempt:04d}"):
        raise RunAlive(
            newest.describe_life(),
            hint=f"`m5ws resume {run} --take-over` resumes the run here, and stops an attempt that is alive.",
        )


def deliver(repo: Repository, home: Path, opener: unsaved.Opener | None = None) -> None:
    """Deliver the data that runs left on this machine. Skip runs that are alive, and name runs with an error.

    `opener` opens the store of a kept last checkpoint. Without it, kept results stay.
    """
    for run_dir in sorted((home / "runs").glob("*")):
        try:
            _deliver(repo, run_dir, opener, wait_s=0.0)
        except RunAlive:
            continue
        except Undelivered as error:
            _log.warning("%s. %s", error, error.hint)


def deliver_run(
    repo: Repository, run: str, home: Path, work_root: Path, opener: unsaved.Opener, notify: Notify | None = None
) -> None:
    """Deliver, before a resume, the data of a run that is in this workspace, or in another workspace with this
    `work_root`.

    The ranks of a killed supervisor get time to end, and `notify` a line about them. Raises RunAlive if the run is
    alive in this workspace, and Undelivered.
    """
    own = home / "runs" / run
    for run_dir in {attempt.parent for attempt in directories.find_attempts(work_root, run) if attempt.exists()}:
        # In a home directory that machines share, locks may not be shared.
        newest = ledger.started(repo, run, max(ledger.attempts(repo, run), default=0))
        is_near = newest is not None and newest.host == socket.gethostname()
        if is_near and not (own.exists() and run_dir.samefile(own)):
            with suppress(RunAlive):
                _deliver(repo, run_dir, opener, RANKS_S, notify)
    _deliver(repo, own, opener, RANKS_S, notify)


def _deliver(
    repo: Repository, run_dir: Path, opener: unsaved.Opener | None, wait_s: float, notify: Notify | None = None
) -> None:
    """Deliver the data in a run's directory. Raises RunAlive, and Undelivered for any other error."""
    try:
        attempts = sorted(run_dir.glob("[0-9][0-9][0-9][0-9]"))
        over = (DELIVERED, unsaved.KEPT)
        waiting = [attempt for attempt in attempts if not any((attempt / mark).exists() for mark in over)]
        if not waiting and not (run_dir / VERDICT).exists():
            return
        with lock_run(run_dir, wait_s, notify):
            for attempt in waiting:
                finish(repo, run_dir.name, int(attempt.name), attempt, opener)
            _publish_verdict(repo, run_dir / VERDICT)
    except RunAlive:
        raise
    except Exception as error:
        # Any damage of this directory: no other run depends on it.
        raise Undelivered(
            f"the data that run {run_dir.name} left on this machine cannot be delivered: {str(error) or repr(error)}",
            hint=f"The next command tries again. If {run_dir} is damaged, move the folder away: its data is then lost.",
        ) from error


def keep_verdict(home: Path, verdict: Verdict) -> None:
    """Keep a verdict that the store did not take, for `deliver`."""
    folder = home / "runs" / verdict.replay
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / VERDICT, codec.encode(verdict), durable=True)


def _publish_verdict(repo: Repository, path: Path) -> None:
    if path.exists():
        verdict = codec.decode(path.read_bytes(), Verdict, str(path))
        with suppress(ObjectExists, removals.Removed):
            runs.publish_verdict(repo, verdict)
        path.unlink()
