"""`m5ws report`: the page, its place, and MLflow."""

import socket
from pathlib import Path

from mlflow import MlflowClient

from m5ws.tracking.mlflow.run_page import find
from tests.cli.conftest import M5, Made


def test_a_report_can_be_written_twice(m5: M5, made: Made, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    for _ in range(2):
        done = m5("report", made.run, "-o", target, "--json")
        assert done.status == 0, done.err
    assert done.document == {
        "run": made.run, "file": str(target), "verdict": "reproduced", "not_attached": "tracking is off in m5ws.toml"
    }  # fmt: skip
    assert made.replay in target.read_text()


def test_the_page_is_attached_to_the_run_in_mlflow(m5: M5, made: Made, place: Path, tmp_path: Path) -> None:
    (place / "m5ws.toml").write_text("name = 'small'\n")
    done = m5("report", made.run, "-o", tmp_path / "report.html", "--json")
    assert (done.status, done.document["not_attached"]) == (0, None), done.err
    client = MlflowClient(f"sqlite:///{place}/.m5ws/mlflow.db")
    (page, *_) = find(client, made.run)
    (artifact,) = client.list_artifacts(page, "m5ws")
    assert artifact.path == "m5ws/report.html"
    assert Path(client.download_artifacts(page, artifact.path)).read_bytes() == (tmp_path / "report.html").read_bytes()


def test_an_unreachable_mlflow_causes_a_message_and_no_failure(m5: M5, made: Made, place: Path, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        (place / "m5ws.toml").write_text(f"[mlflow]\ntracking_uri = '{url}'\n")
        done = m5("report", made.run, "-o", tmp_path / "report.html")
        noted = m5("note", made.run, "kept in the store")
    assert (done.status, noted.status) == (0, 0) and "MLflow" in done.err and "MLflow" in noted.err
    assert (tmp_path / "report.html").is_file()
    assert "kept in the store" in m5("show", made.run).out
