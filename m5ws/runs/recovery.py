"""Delivery of data that an attempt left on its machine: after a kill, or if the store or tracker did not answer.

All of it is below `.m5ws/runs`. The next m5ws command in that workspace delivers it, unless the run is alive. A
supervisor holds the lock `lock`, and torchrun holds `ranks` until its last rank ends. A process without an attempt's
own spools never writes into its chains, because from elsewhere a killed attempt looks like one that is alive. A resume
in another workspace of the machine finds the attempt's directory through its work directory, and takes these locks.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import msgspec

from m5ws import locks
from m5ws.errors import M5Error, ObjectExists, UsageError
from m5ws.filesystem import write_atomically
from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.records.ledger import AttemptEnded, AttemptStarted, Event, Notice
from m5ws.records.verdict import Verdict
from m5ws.repository import runs
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.ledger import LAUNCHER
from m5ws.repository.ledger.spool import SpoolReader
from m5ws.repository.repository import Repository
from m5ws.runs import work_directories
from m5ws.runs.delivery import DELIVERED, Delivery
from m5ws.runs.outputs import killed, outputs, unrecorded, unsaved
from m5ws.tracking.interface import Tracker

TRACKED = "tracked"
"""Name of a file in an attempt's directory. The file exists if the tracker has all of the run."""

VERDICT = "verdict"
"""Name of a file in a run's directory: a verdict that the store did not take."""

UNTOLD = "untold"
"""Name of a file in a run's directory. The file exists if the tracker lacks the run's verdict or joint verdict."""

UNSAVED_STATUS = 5
"""Exit status of an attempt whose results are not all in the store."""
TRACKING_S = 60.0
_RANKS_S = 150.0
"""After a kill of the supervisor, torchrun gives the ranks the deadline of their last checkpoint, and 20 s."""
_FORK_S = 1.0
_OWNER = "owner"
"""Name of a file in an attempt's directory with its own inode. In a copied directory the number does not match."""
_log = logging.getLogger(__name__)


Notify = Callable[[str], None]
"""Called with a line about a wait that has begun."""


class RunAlive(UsageError):
    """The run is alive on this machine."""


class Undelivered(M5Error):
    """The data that a run left on this machine cannot be delivered."""


@contextmanager
def lock_run(run_dir: Path, wait_s: float = _RANKS_S, notify: Notify | None = None) -> Iterator[None]:
    """Lock a run: no other supervisor and no rank of an earlier attempt is alive. Raises RunAlive.

    The ranks of a killed supervisor get `wait_s` seconds to end, and `notify` a line about them. Processes that are
    launched in the block inherit the second lock.
    """
    run = run_dir.name
    with open(run_dir / "lock", "a") as supervisor, open(run_dir / "ranks", "a") as ranks:
        # A child that another thread starts holds the lock too, from its fork to its exec.
        if not locks.acquire(supervisor.fileno(), min(wait_s, _FORK_S)):
            raise RunAlive(f"run {run} is running", hint=f"`m5ws logs {run} -f` prints its output.")
        if not locks.acquire(ranks.fileno(), min(wait_s, _FORK_S)):
            _wait_for_ranks(ranks.fileno(), run_dir, wait_s, notify)
        os.set_inheritable(ranks.fileno(), True)
        yield


def _wait_for_ranks(descriptor: int, run_dir: Path, wait_s: float, notify: Notify | None) -> None:
    """Lock the ranks of a run when those of an earlier attempt have ended. Raises RunAlive after `wait_s` seconds."""
    alive = f"ranks of an earlier attempt of run {run_dir.name} are still alive"
    pids = " ".join(map(str, locks.list_processes(run_dir / "ranks")))
    alive += f": process {pids} on {socket.gethostname()}" if pids else ""
    if notify is not None and wait_s > _FORK_S:
        notify(f"{alive}; waiting at most {wait_s:.0f} s for their end")
    if not locks.acquire(descriptor, wait_s):
        hint = f"Wait, or end them: `kill -9 {pids}`." if pids else "Wait, or kill them."
        raise RunAlive(alive, hint=hint)


def mark_directory(directory: Path) -> None:
    """Mark the directory of a new attempt as the place of its spools."""
    with (directory / _OWNER).open("w") as file:
        file.write(str(os.fstat(file.fileno()).st_ino))


def is_own(repo: Repository, run: str, attempt: int, directory: Path) -> bool:
    """Return True if the spools of the stored attempt are in this directory.

    Another machine may have begun the attempt after it was planned here, or the directory may be a copy.
    """
    spooled = SpoolReader(directory / "spool" / f"{LAUNCHER}.spool").read()
    stored = next(ledger.read(repo, run, attempt, LAUNCHER), None) if spooled else None
    if stored is None or bytes(stored.events[0]) != spooled[0]:
        return False
    mark = directory / _OWNER
    return mark.exists() and mark.read_text() == str(mark.stat().st_ino)


def finish(repo: Repository, run: str, attempt: int, directory: Path, opener: unsaved.Opener | None = None) -> None:
    """Deliver the remaining events of an attempt without a supervisor, and end it if it was killed before its end.

    If the attempt's own spools are elsewhere, do nothing. With an `opener`, also publish results that the store did
    not take, and the output files of a killed attempt.
    """
    if (work := work_directories.find(directory)) is not None:
        work_directories.keep_links(work)
    work_directories.end(directory)
    if (directory / DELIVERED).exists() or not is_own(repo, run, attempt, directory):
        return
    left = Delivery(repo, run, attempt, directory / "spool")
    left.deliver(final=True)
    if not left.complete:
        return
    complete = False
    if opener is not None and unsaved.waiting(directory):
        complete = unsaved.publish(repo, run, attempt, directory, opener)
    recorded = ledger.events(repo, run, attempt, LAUNCHER)
    end = next((event for event in reversed([*recorded]) if isinstance(event, AttemptEnded)), None)
    if end is None:
        _end_killed(repo, run, attempt, directory, left.heads(), is_stored=opener is not None)
    elif opener is not None:
        if end.outcome == "unsaved" and complete:
            _end_finished(repo, run, attempt, end.heads)
            (directory / TRACKED).unlink(missing_ok=True)
        unsaved.remove(directory)
    left.finish()


def _end_killed(
    repo: Repository, run: str, attempt: int, directory: Path, heads: dict[str, Digest], *, is_stored: bool
) -> None:
    """Record the end of a killed attempt; with `is_stored`, after its output files are published.

    If its ranks had ended well, the attempt has finished, or is unsaved while its output files wait.
    """
    notices: list[Notice] = []
    ended = AttemptEnded(
        time_s=time.time(), outcome="failed", exit_code=137, message="the supervisor was killed", heads=heads
    )
    if is_stored:
        unsaved.remove(directory)
        notices = killed.store(repo, run, attempt, directory)
        if killed.is_done(repo, run, attempt, directory):
            lacking = next((notice.message for notice in notices if notice.kind == outputs.NOT_STORED), None)
            ended = msgspec.structs.replace(
                ended,
                outcome="finished" if lacking is None else "unsaved",
                exit_code=0 if lacking is None else UNSAVED_STATUS,
                message=lacking,
            )
    # After a kill before this batch, the next recovery begins again, and leaves published files as they are.
    _append(repo, run, attempt, [*notices, *unrecorded.events(repo, run, attempt), ended])


def _end_finished(repo: Repository, run: str, attempt: int, heads: dict[str, Digest]) -> None:
    """Record that an attempt has finished, because the results that it kept are now stored."""
    ended = AttemptEnded(time_s=time.time(), outcome="finished", exit_code=0, heads=heads)
    _append(repo, run, attempt, [*unrecorded.events(repo, run, attempt), ended])


def _append(repo: Repository, run: str, attempt: int, events: Sequence[Event]) -> None:
    ledger.ChainWriter(repo, run, attempt, LAUNCHER).append([codec.encode(event) for event in events])


class RemoteAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The newest attempt of a run, if it has no end and its spools are not here. It may be alive on `host`."""

    run: str
    attempt: int
    host: str
    last_s: float
    """Time of its last event, in seconds since the epoch, by the clock of its host."""


def find_remote(repo: Repository, run: str, home: Path) -> RemoteAttempt | None:
    """Return the newest attempt of a run if it may be alive in another workspace or on another machine."""
    attempt = max(ledger.attempts(repo, run), default=0)
    if not attempt or is_own(repo, run, attempt, home / "runs" / run / f"{attempt:04d}"):
        return None
    launcher = ledger.events(repo, run, attempt, LAUNCHER)
    if any(isinstance(event, AttemptEnded) for event in launcher):
        return None
    host = _find_host(repo, run, attempt) or "an unknown host"
    last = [max(event.time_s for event in launcher)] if launcher else []
    for rank in ledger.ranks(repo, run, attempt):
        batch = next(ledger.backwards(repo, run, attempt, rank), None)
        last += [ledger.decode_event(event).time_s for event in batch.events] if batch is not None else []
    return RemoteAttempt(run=run, attempt=attempt, host=host, last_s=max(last, default=0.0))


def refuse_elsewhere(repo: Repository, run: str, home: Path) -> None:
    """Raise Running if the newest attempt of a run may be alive elsewhere."""
    remote = find_remote(repo, run, home)
    if remote is None:
        return
    ago = timedelta(seconds=round(max(0.0, time.time() - remote.last_s)))
    raise RunAlive(
        f"run {run} may be alive: attempt {remote.attempt} on {remote.host} has no end, "
        f"and its last sign of life is {ago} (h:mm:ss) old",
        hint=f"`m5ws run --resume {run} --take-over` resumes it here, and stops an attempt that is alive.",
    )


def deliver(repo: Repository, home: Path, opener: unsaved.Opener | None = None) -> None:
    """Deliver the data that runs left on this machine. Skip runs that are alive, and name those with an error.

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
    """Deliver, before a resume, the data of a run that is in this workspace, or in another one with this `work_root`.

    The ranks of a killed supervisor get time to end, and `notify` a line about them. Raises RunAlive if the run is
    alive in this workspace, and Undelivered.
    """
    own = home / "runs" / run
    for run_dir in {attempt.parent for attempt in work_directories.find_attempts(work_root, run) if attempt.exists()}:
        # In a home directory that machines share, locks may not be shared.
        is_near = _find_host(repo, run, max(ledger.attempts(repo, run), default=0)) == socket.gethostname()
        if is_near and not (own.exists() and run_dir.samefile(own)):
            with suppress(RunAlive):
                _deliver(repo, run_dir, opener, _RANKS_S, notify)
    _deliver(repo, own, opener, _RANKS_S, notify)


def _find_host(repo: Repository, run: str, attempt: int) -> str | None:
    """Return the host of an attempt; None if it has not begun."""
    events = ledger.events(repo, run, attempt, LAUNCHER)
    return next((event.host for event in events if isinstance(event, AttemptStarted)), None)


def _deliver(
    repo: Repository, run_dir: Path, opener: unsaved.Opener | None, wait_s: float, notify: Notify | None = None
) -> None:
    """Deliver the data in a run's directory. Raises RunAlive, and Undelivered for any other error."""
    try:
        attempts = sorted(run_dir.glob("[0-9][0-9][0-9][0-9]"))
        waiting = [attempt for attempt in attempts if not (attempt / DELIVERED).exists()]
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
            hint=f"The next command tries again. If {run_dir} is damaged, move it away: its data is then lost.",
        ) from error


def keep_verdict(home: Path, verdict: Verdict) -> None:
    """Keep a verdict that the store did not take, for `deliver`."""
    folder = home / "runs" / verdict.replay
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / VERDICT, codec.encode(verdict), durable=True)


def _publish_verdict(repo: Repository, path: Path) -> None:
    if path.exists():
        verdict = codec.decode(path.read_bytes(), Verdict, str(path))
        with suppress(ObjectExists):
            runs.publish_verdict(repo, verdict)
        path.unlink()


def show_verdict(repo: Repository, tracker: Tracker, home: Path, run: str) -> None:
    """Show the verdict of a replay, or the joint verdict on a run, in the tracker; later if it does not answer."""
    try:
        (home / "runs" / run).mkdir(parents=True, exist_ok=True)
        (home / "runs" / run / UNTOLD).touch()
        problems = deliver_verdicts(repo, tracker, home)
    except OSError as error:
        problems = [str(error)]
    for problem in problems:
        _log.warning("%s; the next verdict, or `m5ws ui`, sends it again", problem)


def pending_verdicts(home: Path) -> list[Path]:
    """Return the marks of verdicts that the tracker lacks."""
    return sorted((home / "runs").glob(f"*/{UNTOLD}"))


def deliver_verdicts(repo: Repository, tracker: Tracker, home: Path) -> list[str]:
    """Write the missing verdicts to the pages of all their runs. Return the problems that remain."""
    for mark in pending_verdicts(home):
        run = mark.parent.name
        if (mark.parent / VERDICT).exists():
            continue
        try:
            verdict = runs.verdict(repo, runs.load(repo, run))
            for name in (run,) if verdict is None else (verdict.run, *verdict.replays):
                tracker.refresh(name)
            mark.unlink(missing_ok=True)
        except (M5Error, OSError) as error:
            # The others would fail in the same way, each after the same time.
            return [f"the tracker lacks the verdict of run {run}: {error}"]
    return []


def catch_up(tracker: Tracker, home: Path) -> list[str]:
    """Deliver ended runs of this machine to the tracker, if it lacks them. Return the problems that remain."""
    problems = []
    for run_dir in sorted((home / "runs").glob("*")):
        attempt = max(run_dir.glob("[0-9][0-9][0-9][0-9]"), default=None)
        if attempt is None or (attempt / TRACKED).exists() or not (attempt / DELIVERED).exists():
            continue
        following = tracker.catch_up(run_dir.name)
        if following.close(timeout_s=TRACKING_S):
            (attempt / TRACKED).touch()
        else:
            problems.append(following.problem)
    return problems
