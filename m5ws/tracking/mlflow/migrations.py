"""The schema of the embedded tracking store, prepared before use.

MLflow creates or upgrades a database's schema in the process that opens it first. Processes that open it at the same
time break each other's migration. So m5ws migrates once, under a lock, and records it.

    python -P -m m5ws.tracking.mlflow.migrations TRACKING_URI EXPERIMENT
"""

import importlib.metadata
import math
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

from m5ws import locks
from m5ws.errors import M5Error, MissingExtra
from m5ws.tracking.mlflow.uri import artifacts_dir, database

EXTRA = "mlflow"


class SchemaError(M5Error):
    """MLflow could not create or upgrade its database."""

    hint = "MLflow's own message is above. Training does not need MLflow: [mlflow] enabled = false disables it."


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
    with open(path.with_name(f"{path.name}.ready"), "a+") as ready:
        locks.acquire(ready.fileno(), math.inf)
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
        raise MissingExtra("tracking in MLflow", EXTRA) from error


def _copy(source: Path, target: Path) -> None:
    if target.exists():
        return
    with sqlite3.connect(source) as old, sqlite3.connect(target) as new:
        old.backup(new)


def _in_a_process(tracking_uri: str, experiment: str) -> None:
    """Migrate in another process, because importing MLflow takes seconds and hundreds of megabytes."""
    argv = [sys.executable, "-P", "-m", "m5ws.tracking.mlflow.migrations", tracking_uri, experiment]
    quiet = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_CONFIGURE_LOGGING": "false"}
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
    upgrade.main([tracking_uri], standalone_mode=False)
    open_experiment(MlflowClient(tracking_uri), experiment, artifacts)


if __name__ == "__main__":
    main(*sys.argv[1:])
