"""The embedded database is made once, by whoever is first, and upgraded with a copy kept."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy
from mlflow import MlflowClient
from mlflow.store.tracking.dbmodels.initial_models import Base

from m5ws.tracking.mlflow.migrations import installed
from m5ws.tracking.mlflow.tracker import Mlflow

_MIGRATE = "import sys; from m5ws.tracking.mlflow.migrations import migrate; migrate(sys.argv[1], 'tests')"


@pytest.mark.long
def test_parallel_starts_create_the_database_once(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/deep/mlflow.db"
    started = [subprocess.Popen([sys.executable, "-c", _MIGRATE, uri]) for _ in range(4)]
    assert [process.wait() for process in started] == [0, 0, 0, 0]
    experiment = MlflowClient(uri).get_experiment_by_name("tests")
    assert experiment is not None
    assert experiment.artifact_location == (tmp_path / "deep" / "mlartifacts").as_uri()
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["mlflow.db", "mlflow.db.ready"]


def test_an_old_database_is_copied_and_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    engine.dispose()
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO experiments VALUES (7, 'kept', 'somewhere', 'active')")
    tracker = Mlflow(f"sqlite:///{path}", "tests", "", tmp_path)
    tracker.migrate()
    client = MlflowClient(tracker.tracking_uri)
    assert {one.name for one in client.search_experiments()} >= {"kept", "tests"}
    with sqlite3.connect(tmp_path / f"mlflow.db.before-{installed()}") as copy:
        assert copy.execute("SELECT name FROM experiments").fetchall() == [("kept",)]
