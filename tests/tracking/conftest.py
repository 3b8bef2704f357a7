"""A real MLflow database for each test, copied from a database that was migrated once."""

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from m5ws.records.run import Run
from m5ws.repository.repository import Repository
from m5ws.tracking.mlflow.tracker import Mlflow
from tests.support.records import mlflow_runs as written


@pytest.fixture(scope="session")
def migrated(session_directory: Path) -> Path:
    """An empty database of the installed MLflow's schema, made by the first worker that needs it."""
    directory = session_directory / "mlflow"
    Mlflow(f"sqlite:///{directory}/mlflow.db", "tests", "", directory).migrate()
    return directory / "mlflow.db"


@pytest.fixture
def tracker(migrated: Path, tmp_path: Path, repo: Repository) -> Mlflow:
    for path in migrated.parent.glob("mlflow.db*"):
        shutil.copy(path, tmp_path)
    return Mlflow(f"sqlite:///{tmp_path}/mlflow.db", "tests", repo.store.url, tmp_path / "runs")


@pytest.fixture
def client(tracker: Mlflow) -> MlflowClient:
    return MlflowClient(tracker.tracking_uri)


@pytest.fixture
def run(repo: Repository, tmp_path: Path) -> Run:
    return written.publish_run(repo, written.publish_snapshot(repo, tmp_path / "source"))
