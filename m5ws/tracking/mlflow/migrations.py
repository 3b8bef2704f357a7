"""The schema of the embedded tracking store, prepared before use.

MLflow creates or upgrades a database's schema in the process that opens it first. Processes that open it at the same
time break each other's migration. So m5ws migrates once, under a lock on a file beside the database, and records it in
this file. The first process that needs MLflow does it (`m5ws ui`, a follower, or a script), and all other processes
wait.

    python -P -m m5ws.tracking.mlflow.migrations TRACKING_URI EXPERIMENT
"""

import importlib.metadata
import math
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from m5ws import locks
from m5ws.errors import M5Error, MissingExtra
from m5ws.tracking.mlflow.uri import artifacts_dir, database, location


class SchemaError(M5Error):
    """MLflow could not create or upgrade its database."""

    hint = "MLflow's own message is above. Training does not need MLflow: [mlflow] enabled = false disables it."


def announce(tracking_uri: str) -> None:
    """Make the file of the lock. Scripts then wait for the schema. Raises OSError."""
    if (path := database(tracking_uri)) is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _lock_file(path).touch()


def await_schema(tracking_uri: str, experiment: str) -> None:
    """Migrate an embedded store that m5ws has announced, or wait until another process has. Raises as `migrate`."""
    path = database(tracking_uri)
    if path is not None and _lock_file(path).exists():
        migrate(tracking_uri, experiment)


def wait(tracking_uri: str) -> None:
    """Wait while another process creates or upgrades an embedded store."""
    path = database(tracking_uri)
    if path is not None and _lock_file(path).exists():
        with _lock(path):
            pass


def _lock_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.ready")


@contextmanager
def _lock(path: Path) -> Iterator[IO[str]]:
    with open(_lock_file(path), "a+") as ready:
        locks.acquire(ready.fileno(), math.inf)
        yield ready


def migrate(tracking_uri: str, experiment: str) -> None:
    """Bring an embedded store to the installed MLflow's schema, and create the experiment. Other stores stay
    unchanged.

    Takes milliseconds if it is done already. An existing database is copied before an upgrade. Raises MissingExtra,
    SchemaError.
    """
    path = database(tracking_uri)
    if path is None:
        return
    version = installed()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path) as ready:
        ready.seek(0)
        done = ready.read().splitlines()
        line = f"{version} {experiment}"
        if path.exists() and line in done:
            return
        if path.exists() and not any(known.startswith(f"{version} ") for known in done):
            _copy(path, path.with_name(f"{path.name}.before-{version}"))
        _in_a_process(tracking_uri, experiment)
        ready.write(f"{line}\n")


def installed() -> str:
    """Return the installed MLflow's version. Raises MissingExtra."""
    try:
        return importlib.metadata.version("mlflow")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtra("tracking in MLflow", "mlflow") from error


def _copy(source: Path, target: Path) -> None:
    if target.exists():
        return
    with sqlite3.connect(source) as old, sqlite3.connect(target) as new:
        old.backup(new)


def _in_a_process(tracking_uri: str, experiment: str) -> None:
    """Migrate in another process, because importing MLflow takes seconds and hundreds of megabytes."""
    argv = [sys.executable, "-P", "-m", "m5ws.tracking.mlflow.migrations", tracking_uri, experiment]
    quiet = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_CONFIGURE_LOGGING": "false"}
    quiet.pop("M5WS_CONTEXT", None)  # with it, the plug-in would wait for the lock that this process holds
    done = subprocess.run(argv, env=quiet, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SchemaError(f"{done.stderr.strip()}\nMLflow's database {tracking_uri} could not be prepared")


def main(tracking_uri: str, experiment: str) -> None:
    """Create or upgrade the schema, then the experiment."""
    from mlflow import MlflowClient
    from mlflow.db import upgrade

    from m5ws.tracking.mlflow.run_page import open_experiment

    artifacts = artifacts_dir(tracking_uri)
    if artifacts is not None:
        os.chdir(artifacts.parent)  # MLflow puts files of its default experiment in the current directory
    # Opening creates a database that does not exist. Some versions cannot create a database by an upgrade.
    if (path := database(tracking_uri)) is not None and path.exists():
        upgrade.main([tracking_uri], standalone_mode=False)
    open_experiment(MlflowClient(tracking_uri), experiment, location(tracking_uri, None))


if __name__ == "__main__":
    main(*sys.argv[1:])
