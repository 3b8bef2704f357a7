"""Execute a plan: materialise, launch, and deliver the ranks' spools to the run's ledger as they grow.

Bookkeeping never fails a run (promise 7). Ranks write only to local spools. Events that the store does not take stay
there and are delivered later, in order, once. The tracker follows the ledger in a process of its own.
"""

import logging
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import msgspec

from m5ws.environment.interface import Observer
from m5ws.errors import M5Error
from m5ws.launch.interface import LEFT_PROCESSES, Launcher, Process
from m5ws.progress import Progress, report
from m5ws.records import codec
from m5ws.records.ledger import INEXACT_RESUME, AnyEvent, AttemptEnded, AttemptStarted, Notice, RankStarted, State
from m5ws.repository import checkpoints, snapshots
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.ledger import LAUNCHER
from m5ws.repository.ledger.spool import SpoolWriter, genesis
from m5ws.repository.repository import Repository
from m5ws.runs import attempt_start, delivery, failure, recovery, results, resume_check, work_directories, work_files
from m5ws.runs.launch_request import SAVE_GRACE_S
from m5ws.runs.outputs import killed
from m5ws.runs.run import AttemptPlan
from m5ws.runs.work_directories import WorkDirectory
from m5ws.snapshot.sources.interface import CommitHistory
from m5ws.tracking.interface import FollowedRun, Tracker

_log = logging.getLogger(__name__)
_POLL_S = 0.1
_BUILDING = "preparing DeepSpeed's operators; the first time in an environment, they are compiled for minutes"
_STOPPING = "stopping the ranks, which may save a last checkpoint (Ctrl-C again ends them at once)"
_SUCCESSOR_S = 30.0
"""Interval of checks for a newer attempt. The store refuses this attempt's publications even before a check."""

Watch = Callable[[str, AnyEvent], bool | None]
"""Called with (rank, event), in the order of each rank. If it returns True, the attempt is stopped."""


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """The outside world of operations on runs. `tracker` is None if tracking is disabled.

    `python` starts the ranks: this interpreter, or the one of a rebuilt environment. Work directories of attempts are
    below `work_root`. `allow_local` has name patterns of distributions that ranks may import although no snapshot
    contains them. `history` has the commits of the repository around the workspace.
    """

    repo: Repository
    launcher: Launcher
    observer: Observer
    tracker: Tracker | None
    environment: Mapping[str, str]
    work_root: Path
    python: str = sys.executable
    allow_local: tuple[str, ...] = ()
    history: CommitHistory | None = None
    keep_work: bool = False
    """Output files stay in the work directories of finished attempts."""


class AttemptResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an attempt.

    `untracked` lists the data that the tracker lacks. `delivered`: the store has the complete ledger. `asked`: the
    user stopped the attempt. `superseded`: a newer attempt has begun elsewhere.
    """

    run: str
    attempt: int
    outcome: str
    exit_code: int
    message: str | None = None
    untracked: str = ""
    delivered: bool = True
    asked: bool = False
    superseded: bool = False


def execute(
    ports: Ports,
    plan: AttemptPlan,
    watch: Watch | None = None,
    progress: Progress | None = None,
    poll: Callable[[], None] | None = None,
) -> AttemptResult:
    """Run one attempt to its end. Raises RunAlive if the run is alive, Fenced if the attempt has begun elsewhere.

    `poll` is called several times a second while the ranks run. Ctrl-C (KeyboardInterrupt) stops the ranks and ends the
    attempt as interrupted. Published data stays. Output files of a finished attempt that are in the store are removed
    from its work directory, unless the ports keep them.
    """
    home = plan.directory.parent
    home.mkdir(parents=True, exist_ok=True)
    with recovery.lock_run(home, notify=partial(report, progress)):
        if ports.tracker is not None:
            report(progress, "preparing MLflow")
            _prepare(ports.tracker)
        attempt_start.refuse_stale(ports.repo, plan)
        for attempt in range(1, plan.attempt):
            recovery.finish(ports.repo, plan.run.id, attempt, home / f"{attempt:04d}")
        # An existing directory was left by a supervisor that was killed before its attempt began.
        work_directories.remove(plan.directory)
        shutil.rmtree(plan.directory, ignore_errors=True)
        snapshot = snapshots.load(ports.repo, plan.run.snapshot)
        for folder in (plan.context.spool_dir, plan.context.log_dir, plan.context.output_dir):
            Path(folder).mkdir(parents=True, exist_ok=True)
        recovery.mark_directory(plan.directory)
        try:
            run, author = plan.run.reproduces or plan.run.id, Path(plan.context.author_dir)
            work = work_directories.make(ports.work_root, plan.directory, run, author, ports.launcher.can_mount)
            plan = attempt_start.assign_directory(plan, work)
            report(progress, "observing this machine, with torch")
            observed = ports.observer.observe(rank_variables(ports, plan))
            image = snapshot.declared.image
            plan = attempt_start.list_local_installs(plan, observed, image, ports.allow_local)
            attempt_start.materialise_inputs(ports.repo, snapshot, work.path, progress)
            attempt_start.make_output_folders(work.path, plan.run.spec.outputs)
            (plan.directory / "context").write_bytes(codec.encode(plan.context))
            spool_path = Path(plan.context.spool_dir) / f"{LAUNCHER}.spool"
            with closing(SpoolWriter(spool_path, genesis(plan.run.id, plan.attempt, LAUNCHER))) as spool:
                attempt_start.publish(ports.repo, plan, observed, spool)
                result = _Attempt(ports, plan, spool, watch, work, poll, progress).supervise()
        finally:
            work_directories.end(plan.directory)
        if plan.run.spec.outputs and result.outcome == "finished" and result.delivered and not ports.keep_work:
            report(progress, "removing output files that are stored")
            _remove_outputs(ports.repo, plan)
        return result


def _remove_outputs(repo: Repository, plan: AttemptPlan) -> None:
    """Remove stored output files from the work directory. An error or Ctrl-C leaves them to gc."""
    try:
        work_files.remove_outputs(repo, plan.run.id, plan.attempt, plan.directory)
    except (M5Error, OSError, KeyboardInterrupt) as error:
        _log.warning("output files of run %s stay in its work directory: %s", plan.run.id, repr(error))


def _followed(tracker: Tracker | None, run: str) -> FollowedRun | None:
    """Start following a run in the tracker. An error of the tracker never fails a run."""
    try:
        return tracker.follow(run) if tracker is not None else None
    except (M5Error, OSError) as error:
        _log.warning("the tracker does not follow run %s: %s", run, error)
        return None


def _prepare(tracker: Tracker) -> None:
    """Let an embedded tracker create its tables now. Otherwise the ranks' first calls race to create them."""
    try:
        tracker.migrate()
    except (M5Error, OSError) as error:
        _log.warning("the tracker is not ready; events are delivered to it later: %s", error)


def rank_variables(ports: Ports, plan: AttemptPlan) -> dict[str, str]:
    """Return all variables of a rank. The observer records those of its allow-list, so no secret is kept."""
    inherited = {name: value for name, value in ports.environment.items() if name not in plan.request.unset}
    return inherited | plan.request.environment


class _Attempt:
    """The supervision of one launched attempt."""

    def __init__(
        self,
        ports: Ports,
        plan: AttemptPlan,
        spool: SpoolWriter,
        watch: Watch | None,
        work: WorkDirectory,
        poll: Callable[[], None] | None,
        progress: Progress | None,
    ) -> None:
        self._ports = ports
        self._plan = plan
        self._work = work
        self._spool = spool
        self._watch = watch
        self._poll = poll
        self._progress = progress
        self._stopping = False
        self._asked = False
        self._successor: AttemptStarted | None = None
        self._looked_s = time.monotonic()
        self._last_step = checkpoints.step_of(plan.resume) if plan.resume else 0
        self._restored = self._has_begun = False
        self._results = results.Results(ports.repo, plan, work.path, spool, self._notice)
        self._failures = failure.Failures()
        self._repeated = resume_check.RepeatedSteps(ports.repo, plan.run.id, plan.attempt)
        self._delivery = delivery.Delivery(ports.repo, plan.run.id, plan.attempt, Path(plan.context.spool_dir))

    def supervise(self) -> AttemptResult:
        process, outcome, message = None, "failed", None
        follower = _followed(self._ports.tracker, self._plan.run.id)
        try:
            self._results.begin()
            report(self._progress, _BUILDING if self._plan.request.prepare else "starting the processes")
            process = self._ports.launcher.launch(self._plan.request)
            exit_code = self._follow(process, follower)
            outcome = "finished" if exit_code == 0 else "failed"
            if self._stopping and self._successor is None:
                outcome, message = "interrupted", "stopped by m5ws, because no more steps were needed"
        except KeyboardInterrupt as request:
            self._asked = True
            report(self._progress, _STOPPING)
            name = str(request) or signal.SIGINT.name
            exit_code = _stopped(process, self._plan.context.saving.deadline_s + SAVE_GRACE_S, name)
            outcome, message = "interrupted", f"stopped by {name}"
        except M5Error as error:
            exit_code, message = 1, str(error)
            self._notice("launch-failed", f"{error}\n{error.hint}".strip())
        finally:
            if process is not None and process.poll() is None:
                process.stop(SAVE_GRACE_S)
        self._note_left_processes()
        self._seen(self._delivery.deliver(final=True))
        if self._superseded() and self._successor is not None:
            later = self._successor
            outcome, message = "interrupted", f"superseded by attempt {later.attempt} on {later.host}"
        if outcome == "finished" and not self._has_begun and self._delivery.complete:
            exit_code, outcome = 1, "failed"
            message = f"`{self._plan.run.spec.command[0]}` did not start the script"
        if outcome == "finished" and self._began_anew():
            exit_code, outcome = 1, "failed"
            message = "the script did not restore the fork's checkpoint, because it uses no m5ws.session"
        self._results.report_modified()
        self._results.record_published(is_delivered=self._delivery.complete, is_stopped=self._asked)
        work_directories.keep_links(self._work)
        if outcome == "finished" and self._plan.run.purpose == "train" and self._results.unsaved is None:
            killed.mark_done(self._plan.directory)
        report(self._progress, "storing output files")
        self._results.keep_outputs()
        if outcome == "finished" and self._results.unsaved is not None:
            exit_code, outcome, message = recovery.UNSAVED_STATUS, "unsaved", self._results.unsaved
        if outcome == "finished" or self._stopping:
            # A replay that was stopped is never resumed.
            self._results.remove_inputs()
        return self._end(outcome, exit_code, message, follower)

    def _follow(self, process: Process, follower: FollowedRun | None) -> int:
        announced = 0
        while (exit_code := process.poll()) is None:
            time.sleep(_POLL_S)
            events = self._delivery.deliver()
            if self._poll is not None:
                self._poll()
            if follower is not None and self._delivery.batches > announced:
                announced = self._delivery.batches
                follower.wake()
            if (self._seen(events) or self._is_time_to_look()) and not self._stopping:
                self._stopping = True
                process.stop(SAVE_GRACE_S)
            self._results.copy()
        if self._poll is not None:
            self._poll()
        return exit_code

    def _is_time_to_look(self) -> bool:
        """Check for a newer attempt at intervals. Return True if one has begun."""
        if time.monotonic() - self._looked_s < _SUCCESSOR_S:
            return False
        self._looked_s = time.monotonic()
        return self._superseded()

    def _superseded(self) -> bool:
        """Return True if a newer attempt is known to have begun. An error of the store changes nothing."""
        try:
            self._successor = ledger.successor(self._ports.repo, self._plan.run.id, self._plan.attempt)
        except (M5Error, OSError) as error:
            _log.warning("cannot check for a newer attempt of run %s: %s", self._plan.run.id, error)
        return self._successor is not None

    def _seen(self, events: list[tuple[str, AnyEvent]]) -> bool:
        """Pass on delivered events. Return True if the watcher stops the attempt."""
        stop = False
        for rank, event in events:
            self._last_step = max(self._last_step, getattr(event, "step", None) or 0)
            self._results.add(event)
            self._failures.add(event)
            self._has_begun = self._has_begun or isinstance(event, RankStarted)
            self._restored = self._restored or (isinstance(event, State) and event.restored)
            for message in self._repeated.compare(rank, event):
                self._notice(INEXACT_RESUME, message)
            stop = bool(self._watch and self._watch(rank, event)) or stop
        return stop

    def _began_anew(self) -> bool:
        """Return True if a fork is known not to have restored its parent's checkpoint, so that it is no fork."""
        return self._plan.context.parent is not None and not self._restored and self._delivery.complete

    def _note_left_processes(self) -> None:
        """Append a notice for each process that outlived the script."""
        with suppress(FileNotFoundError):
            for line in Path(self._plan.request.processes, LEFT_PROCESSES).read_text().splitlines():
                pid, _, command = line.partition(" ")
                self._notice("left-process", f"process {pid} outlived the script, and was ended: {command}")

    def _notice(self, kind: str, message: str) -> None:
        notice = Notice(time_s=time.time(), kind=kind, message=message, step=self._last_step)
        self._spool.append(notice)

    def _describe_failure(self, exit_code: int) -> str:
        """Return the failure in words. A rank without torchrun is the launched process itself."""
        is_plain = self._plan.run.spec.trainer in ("python", "command")
        statuses = {0: exit_code} if is_plain else failure.read_statuses(Path(self._plan.request.log))
        killed_after = self._plan.context.killed_after
        if killed_after is not None and -signal.SIGKILL in statuses.values():
            return f"killed after step {killed_after}, to test the resume"
        return self._failures.describe(statuses) or f"the ranks ended with status {exit_code} without an error"

    def _end(self, outcome: str, exit_code: int, message: str | None, follower: FollowedRun | None) -> AttemptResult:
        if outcome == "failed" and message is None:
            message = self._describe_failure(exit_code)
        ended = AttemptEnded(
            time_s=time.time(),
            outcome=outcome,  # type: ignore[arg-type]
            exit_code=exit_code,
            message=message,
            heads=self._delivery.heads(),
        )
        self._spool.append(ended)
        self._seen(self._delivery.finish())
        if follower is not None:
            report(self._progress, "waiting for MLflow to have all records of the run")
        tracked = follower is not None and follower.close(timeout_s=recovery.TRACKING_S)
        if tracked or self._ports.tracker is None:
            (self._plan.directory / recovery.TRACKED).touch()
        return AttemptResult(
            run=self._plan.run.id,
            attempt=self._plan.attempt,
            outcome=outcome,
            exit_code=exit_code,
            message=message,
            delivered=self._delivery.complete,
            asked=self._asked,
            superseded=self._successor is not None,
            untracked=follower.problem if follower is not None and not tracked else "",
        )


def _stopped(process: Process | None, grace_s: float, name: str) -> int:
    """Stop the ranks as Ctrl-C does, and return the exit status. A second Ctrl-C stops them at once."""
    if process is None:
        return 130
    try:
        return process.stop(grace_s, signal.SIGINT if name == signal.SIGINT.name else signal.SIGTERM)
    except KeyboardInterrupt:
        return process.stop(0.0)
