"""MLflow as a `Tracker`. A process of its own follows the ledger and writes the pages of runs.

This module does not import MLflow, so starting a run does not cost its import. A training rank shares no lock, thread
or second with it. Queries are in `client`, which is imported on use.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from m5ws import locks
from m5ws.progress import Progress
from m5ws.tracking.interface import FOLLOWED, LoggedResults, SyncReport
from m5ws.tracking.mlflow import process
from m5ws.tracking.mlflow.follower import Follower, FollowerOptions
from m5ws.tracking.mlflow.migrations import announce, installed, migrate
from m5ws.tracking.mlflow.uri import artifacts_dir, is_server

_QUIET = (
    "env",
    # By default the server sends telemetry, and starts seven processes for jobs.
    "MLFLOW_DISABLE_TELEMETRY=true",
    "DO_NOT_TRACK=true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false",
)


class DeliveringProcess:
    """A process that delivers to MLflow. After the end of its input, or of this process, it delivers the rest and ends.

    Its errors are in the file `mlflow.log` in `folder`: a run's directory, or the folder of all runs.
    """

    def __init__(self, argv: Sequence[str], tracking_uri: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "mlflow.log"
        self._log.unlink(missing_ok=True)
        with open(self._log, "ab") as log, open(folder / FOLLOWED, "a") as followed:
            # The process inherits the lock, which ends with it.
            locks.acquire(followed.fileno())
            # In a session of its own, so that Ctrl-C in the terminal does not stop the delivery of the run's end.
            self._process = subprocess.Popen(
                argv,
                env={**os.environ, process.URI: tracking_uri},
                pass_fds=[followed.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    def wake(self) -> None:
        stdin = self._process.stdin
        # A full pipe means that earlier calls are still unread. `close` reports a follower that has ended.
        with suppress(BlockingIOError, BrokenPipeError):
            if stdin is not None and not stdin.closed:
                os.write(stdin.fileno(), b"\n")

    def close(self, timeout_s: float) -> bool:
        """Announce the end of the run and wait. Return True if all of it is in MLflow. May be called again."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            return self._process.wait(timeout_s) == 0
        except subprocess.TimeoutExpired:
            return False

    @property
    def problem(self) -> str:
        """The error output, for people; empty if there is none."""
        try:
            return self._log.read_text(errors="replace").strip()
        except OSError as error:
            return f"{self._log} cannot be read: {error}"


class Mlflow:
    """`Tracker` on the MLflow at `tracking_uri`, for the runs of the store at `store_url`.

    `runs_dir` has the directory of each run of this machine. `store_id` is the store's id in M5WS_STORES of the server.
    """

    def __init__(
        self,
        tracking_uri: str,
        experiment: str,
        store_url: str,
        runs_dir: Path,
        remedy: str = "`m5ws ui --deliver`",
        store_id: str | None = None,
    ) -> None:
        self.tracking_uri = tracking_uri
        self.remedy = remedy
        self.experiment = experiment
        self._store_url = store_url
        self._runs_dir = runs_dir
        self._store_id = store_id

    def announce(self) -> None:
        announce(self.tracking_uri)

    def migrate(self) -> None:
        migrate(self.tracking_uri, self.experiment)

    def environment(self) -> dict[str, str]:
        return {"MLFLOW_TRACKING_URI": self.tracking_uri, "MLFLOW_EXPERIMENT_NAME": self.experiment}

    def follow(self, run: str) -> DeliveringProcess:
        options = self.options(run)
        return DeliveringProcess(process.argv(options, [run]), self.tracking_uri, options.directory)

    def catch_up(self, runs: Sequence[str]) -> DeliveringProcess:
        options = self.options(runs[0], once=True)
        return DeliveringProcess(process.argv(options, runs), self.tracking_uri, self._runs_dir.parent)

    def refresh(self, run: str) -> None:
        from m5ws.tracking.mlflow.client import client

        with client(self.tracking_uri):
            Follower(self.options(run, once=True)).judge()

    def sync(self, run: str, *, dry_run: bool, progress: Progress | None) -> SyncReport:
        from m5ws.tracking.mlflow.client import client, is_missing

        if not dry_run:
            self.migrate()
        # A client creates an embedded store.
        with nullcontext() if is_missing(self.tracking_uri) else client(self.tracking_uri):
            return Follower(self.options(run, once=True)).replay(dry_run=dry_run, progress=progress)

    def logged(self, run: str) -> LoggedResults:
        from m5ws.tracking.mlflow import logged_results

        return logged_results.load(self.tracking_uri, self._store_url, run)

    def ui_url(self, port: int) -> str:
        return self.tracking_uri.rstrip("/") if is_server(self.tracking_uri) else f"http://127.0.0.1:{port}"

    def ui_page(self) -> str:
        from m5ws.tracking.mlflow.client import client, is_missing

        if is_missing(self.tracking_uri):
            return ""
        with client(self.tracking_uri) as mlflow:
            experiment = mlflow.get_experiment_by_name(self.experiment)
        return f"/#/experiments/{experiment.experiment_id}/runs" if experiment is not None else ""

    def ui_argv(self, port: int) -> tuple[str, ...]:
        if is_server(self.tracking_uri):
            return ()
        installed()
        artifacts = artifacts_dir(self.tracking_uri)
        where = ("--default-artifact-root", artifacts.as_uri()) if artifacts else ()
        # In a variable, because the address may contain a password and all users see arguments.
        database = f"MLFLOW_BACKEND_STORE_URI={self.tracking_uri}"
        serve = ("--host", "127.0.0.1", "--port", str(port), "--workers", "1")
        return (*_QUIET, database, sys.executable, "-P", "-m", "mlflow", "server", *serve, *where)

    def options(self, run: str, *, once: bool = False) -> FollowerOptions:
        """Return the options of a follower of `run`."""
        return FollowerOptions(
            store=self._store_url,
            run=run,
            runs_dir=str(self._runs_dir),
            tracking_uri=self.tracking_uri,
            experiment=self.experiment,
            store_id=self._store_id,
            once=once,
        )
