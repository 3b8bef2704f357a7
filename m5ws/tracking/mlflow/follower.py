"""The delivery of a run's ledger to its page in MLflow.

It only reads the store, so no error here can fail the run (promise 7). If MLflow has all records up to the end of an
attempt, the attempt is marked as tracked. A ledger without an end is not complete. MLflow is imported only when there
is data to deliver.
"""

import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from m5ws import locks
from m5ws.progress import Progress, report
from m5ws.records.ledger import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CheckpointPublished,
    NodeStarted,
    Notice,
    OutputsStored,
    RankStarted,
    Step,
)
from m5ws.repository.ledger.tail import LedgerTail
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from m5ws.tracking.interface import TRACKED, UNTOLD, SyncReport
from m5ws.tracking.mlflow import tags
from m5ws.tracking.mlflow.metrics import Point, Points
from m5ws.tracking.mlflow.uri import database, location

_MOST_POINTS = 1000
"""Points that are tried at once. One call takes 1,000 metrics."""
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "unsaved": "FAILED"}


class FollowerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The run to follow and the MLflow to deliver to. `once`: deliver existing events, and end.

    `runs_dir` has the directory of each run of this machine.
    """

    store: str
    run: str
    runs_dir: str
    tracking_uri: str
    experiment: str
    store_id: str | None = None
    once: bool = False

    @property
    def directory(self) -> Path:
        """The directory of the run on this machine. Elsewhere it does not exist."""
        return Path(self.runs_dir, self.run)

    @property
    def location(self) -> str | None:
        """The location of the artifacts of a new experiment; None for the server's own."""
        return location(self.tracking_uri, self.store_id)


class Follower:
    """Delivers one run. `advance` may raise any error of MLflow, and may then be called again."""

    def __init__(self, options: FollowerOptions, connect: Callable[[str], Any] | None = None) -> None:
        self._options = options
        self._connect = connect or _connect
        self._repo = Repository.open(open_store(options.store))
        self._tail = LedgerTail(self._repo, options.run)
        self._points = Points()
        self._queue: deque[Point] = deque()
        self._checkpoints: list[CheckpointPublished | OutputsStored] = []
        self._last_step = 0
        self._notices: list[Notice] = []
        self._attempt = 0
        self._started_s: float | None = None
        self._ended: AttemptEnded | None = None
        self._latest_s = 0.0
        self._page: Any = None
        self._subject: tags.Subject | None = None
        self._described: object = None
        self._listed = 0
        self.refused: list[str] = []
        self._progress: Progress | None = None

    def replay(self, *, dry_run: bool, progress: Progress | None = None) -> SyncReport:
        """Deliver the whole run, and return the numbers of records that MLflow lacked. `dry_run` changes nothing."""
        from m5ws.tracking.mlflow.run_page import RunPage, find

        self._read()
        subject, uri = tags.load(self._repo, self._options.run), self._options.tracking_uri
        snapshot, path = subject.snapshot, database(uri)
        # A request would create an embedded store.
        client = self._connect(uri) if path is None or path.exists() else None
        pages = find(client, subject.run.id) if client is not None else []
        lacked = len(self._queue), len(self._checkpoints), len(snapshot.datasets) + len(snapshot.remote)
        if pages:
            lacked = RunPage(client, pages[0]).lacks(subject, [*self._queue], self._checkpoints)
        steps, models, datasets = lacked
        if not dry_run:
            self._progress = progress
            self.advance(last=True, look=False)
            pages = find(client, subject.run.id)
        return SyncReport(
            run=subject.run.id,
            page=next(iter(pages), None),
            steps=steps,
            models=models,
            datasets=datasets,
            refused=tuple(self.refused),
        )

    def advance(self, *, last: bool = False, look: bool = True) -> None:
        """Read new events if `look`, and deliver all. `last`: the supervisor has ended, so nothing follows."""
        if look:
            self._read()
        # Until then, a script may start its own MLflow run, which becomes the run's page.
        if last or self._queue or self._checkpoints or self._ended:
            try:
                with _lock_pages(self._options):
                    self._deliver(last)
            except BaseException:
                self._page = None  # query MLflow's state again
                raise

    def judge(self) -> None:
        """Write the verdicts and notes of the run to its pages. A missing page is created."""
        from m5ws.tracking.mlflow.run_page import find

        if not find(self._connect(self._options.tracking_uri), self._options.run):
            self.advance(last=True)
        with _lock_pages(self._options):
            subject, repo = tags.load(self._repo, self._options.run), self._repo
            page = self._open(subject)
            page.judge(subject, runs.verdicts(repo, subject.run.id), runs.joint(repo, subject.run.id))

    @property
    def is_tracked(self) -> bool:
        """True if another process has delivered the ledger, so that at most a verdict is missing."""
        directory = self._options.directory
        attempt = max(directory.glob("[0-9][0-9][0-9][0-9]"), default=None)
        return (directory / UNTOLD).exists() if attempt is None else (attempt / TRACKED).exists()

    def finish(self) -> None:
        """Mark this machine's newest attempt as tracked if MLflow has it to its end, and show an untold verdict.

        Records that MLflow refuses count as delivered, because it would refuse them again.
        """
        directory = self._options.directory
        newest = max(directory.glob("[0-9][0-9][0-9][0-9]"), default=None)
        number = int(newest.name) if newest is not None else 0
        if newest is not None and (number < self._attempt or (number == self._attempt and self._ended is not None)):
            (newest / TRACKED).touch()
        if not (directory / UNTOLD).exists():
            return
        run = runs.load(self._repo, self._options.run)
        verdict = runs.verdict(self._repo, run)
        if verdict is None and run.reproduces is not None:
            return  # the store does not have the verdict yet
        for name in (run.id,) if verdict is None else (verdict.run, *verdict.replays):
            Follower(msgspec.structs.replace(self._options, run=name)).judge()
        (directory / UNTOLD).unlink(missing_ok=True)

    def _read(self) -> None:
        """Read new events of the ledger, and queue the points that are complete."""
        for attempt, rank, event in self._tail.poll():
            with self._skipping(f"an event of rank {rank}"):
                self._take(attempt, rank, event)
        self._queue.extend(self._points.take(self._skipping))

    def _take(self, attempt: int, rank: str, event: AnyEvent) -> None:
        self._points.add(attempt, rank, event)
        self._latest_s = max(self._latest_s, event.time_s)
        match event:
            case NodeStarted() | RankStarted():
                self._subject = None  # a node or a rank has recorded its facts
            case AttemptStarted():
                self._subject = None
                self._attempt, self._ended = attempt, None
                self._started_s = self._started_s or event.time_s
            case AttemptEnded() if attempt == self._attempt:
                self._ended = event
            case Step():
                self._last_step = max(self._last_step, event.step)
            case CheckpointPublished() | OutputsStored():
                self._checkpoints.append(event)
            case Notice():
                self._notices.append(event)

    def _deliver(self, last: bool) -> None:
        if last:
            self._page = None  # a script may have started MLflow runs of its own since
        if self._subject is None:
            self._subject = tags.load(self._repo, self._options.run)
        subject = self._subject
        page = self._open(subject)
        if not self._ended and not last:
            page.settle("RUNNING", None)
        self._describe(page, subject, last)
        total = len(self._queue)
        while self._queue:
            report(self._progress, "sending steps to MLflow", total - len(self._queue), total)
            for _ in range(self._send(page, [*itertools.islice(self._queue, _MOST_POINTS)])):
                self._queue.popleft()
        # Checkpoints come last, because hundreds of them take seconds.
        self._settle(page, last)
        if self._listed < len(self._checkpoints):
            with self._skipping("checkpoints"):
                page.publish(subject, self._checkpoints[self._listed :], self._last_step)
            self._listed = len(self._checkpoints)

    def _send(self, page: Any, points: Sequence[Point]) -> int:
        """Send points from the front of the queue, and return the number of points that are done.

        A point that MLflow refuses is left out, so that later points are delivered. It is found by halving the batch.
        """
        try:
            return int(page.send(points))
        except Exception as error:
            if not is_refusal(error):
                raise
            if len(points) > 1:
                return self._send(page, points[: len(points) // 2])
            self.refused.append(f"step {points[0].step}: {error}")
            return 1

    @contextmanager
    def _skipping(self, part: str) -> Iterator[None]:
        """Record an error that a retry would not change, and continue. Other errors are raised."""
        try:
            yield
        except Exception as error:
            if not is_refusal(error):
                raise
            self.refused.append(f"{part}: {error}")

    def _open(self, subject: tags.Subject) -> Any:
        if self._page is None:
            from m5ws.tracking.mlflow.run_page import open_page

            options = self._options
            client = self._connect(options.tracking_uri)
            started_ms = int((self._started_s or subject.run.created_s) * 1000)
            self._page = open_page(client, options.experiment, options.location, subject, started_ms)
            self._described, self._listed = None, 0
        return self._page

    def _describe(self, page: Any, subject: tags.Subject, last: bool) -> None:
        """Write the description of the run again if its facts have changed."""
        known = (subject, len(self._notices), last)
        if known != self._described:
            # A run that is alive in its first attempt has no verdict yet, and the check costs a read for each run.
            verdicts = runs.verdicts(self._repo, subject.run.id) if last or self._attempt > 1 else []
            joint = runs.joint(self._repo, subject.run.id) if verdicts else None
            with self._skipping("description"):
                page.describe(self._repo, subject, verdicts, tags.notice_tag(self._notices), joint)
            self._described = known

    def _settle(self, page: Any, last: bool) -> None:
        if self._ended is not None:
            page.settle(_STATUS[self._ended.outcome], int(self._ended.time_s * 1000))
        elif last and not self._options.once:
            # The supervisor has ended without an event, so nothing is running.
            page.settle("KILLED", int(self._latest_s * 1000))


def is_refusal(error: Exception) -> bool:
    """Return True if the same call would fail again: MLflow refuses its content, or the code is wrong."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        return bool(error.error_code == "INVALID_PARAMETER_VALUE")
    wrong = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
    return isinstance(error, wrong) and not isinstance(error, OSError)


def _connect(tracking_uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri)


@contextmanager
def _lock_pages(options: FollowerOptions) -> Iterator[None]:
    """Lock the pages of a run in the block. Two processes of this machine would create two pages, or overwrite each
    other's description.
    """
    if not options.directory.is_dir():
        yield
        return
    with open(options.directory / "mlflow.lock", "w") as file:
        locks.acquire(file.fileno(), math.inf)
        yield


def limit_requests() -> None:
    """Have MLflow give up after seconds, and send no telemetry. By default it retries for minutes.

    Its client repeats no request: if only the answer was lost, a repetition would create a second page or model. The
    follower begins again with a look at the records that exist.
    """
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
