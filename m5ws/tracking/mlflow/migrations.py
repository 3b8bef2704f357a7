"""The embedded tracking store, made ready before anything uses it.

MLflow makes or upgrades a database's schema in whichever process opens it first, and processes that
open it together break each other's migration: so m5ws does it once, under a lock, and remembers.

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
    """MLflow could not make or upgrade its database."""

    hint = "MLflow's own message is above; training does not need it: [mlflow] enabled = false turns it off."


def migrate(tracking_uri: str, experiment: str) -> None:
    """Bring an embedded store to the installed MLflow's schema and make the experiment; others are left alone.

    Costs milliseconds when it is done already. An existing database is copied before it is upgraded.
    Raises MissingExtra, SchemaError.
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
    """Do it in a process of its own: importing MLflow costs seconds and hundreds of megabytes."""
    argv = [sys.executable, "-P", "-m", "m5ws.tracking.mlflow.migrations", tracking_uri, experiment]
    quiet = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_CONFIGURE_LOGGING": "false"}
    done = subprocess.run(argv, env=quiet, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SchemaError(f"{done.stderr.strip()}\nMLflow's database {tracking_uri} could not be made ready")


def main(tracking_uri: str, experiment: str) -> None:
    """Make or upgrade the schema, then the experiment."""
    from mlflow import MlflowClient
    from mlflow.db import upgrade

    from m5ws.tracking.mlflow.run_page import open_experiment

    artifacts = artifacts_dir(tracking_uri)
    if artifacts is not None:
        os.chdir(artifacts.parent)  # MLflow puts the files of its default experiment where it is started
    upgrade.main([tracking_uri], standalone_mode=False)
    open_experiment(MlflowClient(tracking_uri), experiment, artifacts)


if __name__ == "__main__":
    main(*sys.argv[1:])
