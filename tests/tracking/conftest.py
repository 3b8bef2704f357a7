"""A real MLflow database for each test, copied from one that was migrated once."""

from pathlib import Path

import pytest
from mlflow import MlflowClient

from m5ws.records.run import Run
from m5ws.repository.repository import Repository
from m5ws.tracking.mlflow.tracker import Mlflow
from tests.support.records import mlflow_runs as written


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of the installed MLflow's schema."""
    directory = tmp_path_factory.mktemp("mlflow")
    Mlflow(f"sqlite:///{directory}/mlflow.db", "tests", "", directory).migrate()
    return directory / "mlflow.db"


@pytest.fixture
def tracker(migrated: Path, tmp_path: Path, repo: Repository) -> Mlflow:
    database = tmp_path / "mlflow.db"
    database.write_bytes(migrated.read_bytes())
    return Mlflow(f"sqlite:///{database}", "tests", repo.store.url, tmp_path / "runs")


@pytest.fixture
def client(tracker: Mlflow) -> MlflowClient:
    return MlflowClient(tracker.tracking_uri)


@pytest.fixture
def run(repo: Repository, tmp_path: Path) -> Run:
    return written.publish_run(repo, written.publish_snapshot(repo, tmp_path / "source"))
