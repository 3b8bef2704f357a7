"""The run-context plug-in, found by MLflow itself through an entry point, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from m5ws.records import codec
from m5ws.tracking.interface import LOGGED
from m5ws.tracking.mlflow.context_provider import M5Context
from m5ws.tracking.mlflow.run_page import find
from m5ws.tracking.mlflow.tracker import Mlflow
from tests.support.ranks.orders import orders

_SCRIPT = "import mlflow\nwith mlflow.start_run():\n    mlflow.log_metric('loss', 0.25, step=3)\n"


def _context(tmp_path: Path) -> Path:
    context = orders(tmp_path / "x", run="0123456789ab", snapshot="5" * 64, attempt=2)
    path = tmp_path / "context"
    path.write_bytes(codec.encode(context))
    return path


def _installed(tmp_path: Path) -> Path:
    """Return a folder that, on the path, registers the entry point as an installed m5ws does."""
    info = tmp_path / "site" / "m5ws_entry_point_test-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: m5ws-entry-point-test\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[mlflow.run_context_provider]\nm5ws = m5ws.tracking.mlflow.context_provider:M5Context\n"
    )
    return info.parent


def _run_script(tracker: Mlflow, tmp_path: Path) -> None:
    """Run the script in a process of an m5ws run."""
    path = os.pathsep.join([str(_installed(tmp_path)), *filter(None, sys.path)])
    variables = {"PYTHONPATH": path, "M5WS_CONTEXT": str(_context(tmp_path)), "RANK": "3"} | tracker.environment()
    subprocess.run([sys.executable, "-c", _SCRIPT], env=os.environ | variables, cwd=tmp_path, check=True)


@pytest.mark.long
def test_a_script_finds_an_announced_database_ready(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    tracker = Mlflow(f"sqlite:///{tmp_path}/home/mlflow.db", "tests", "", tmp_path)
    tracker.announce()
    _run_script(tracker, tmp_path / "work")
    client = MlflowClient(tracker.tracking_uri)
    experiment = client.get_experiment_by_name("tests")
    assert experiment is not None and experiment.artifact_location == (tmp_path / "home" / "mlartifacts").as_uri()
    assert len(find(client, "0123456789ab")) == 1


def test_a_script_s_own_run_is_tagged(tracker: Mlflow, client: MlflowClient, tmp_path: Path) -> None:
    _run_script(tracker, tmp_path)
    (page,) = find(client, "0123456789ab")
    tags = client.get_run(page).data.tags
    assert (tags["m5ws.attempt"], tags["m5ws.rank"], tags["m5ws.snapshot_id"]) == ("2", "3", "5" * 64)
    assert client.get_metric_history(page, "loss")[0].value == 0.25
    assert (tmp_path / LOGGED).exists()


def test_the_context_provider_has_no_tags_outside_a_run_and_never_raises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("M5WS_CONTEXT", raising=False)
    assert not M5Context().in_context()
    for path, content in ((tmp_path / "none", None), (tmp_path / "odd", b"not a context")):
        if content is not None:
            path.write_bytes(content)
        monkeypatch.setenv("M5WS_CONTEXT", str(path))
        assert M5Context().tags() == {}


def test_importing_the_context_provider_loads_neither_msgspec_nor_mlflow() -> None:
    probe = (
        "import sys; before = set(sys.modules); import m5ws.tracking.mlflow.context_provider; "
        "print(set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert "msgspec" not in done.stdout
    assert "mlflow'" not in done.stdout.replace("m5ws.tracking.mlflow", "")
