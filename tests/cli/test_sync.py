"""`m5ws sync`: a run is replayed into an MLflow at another address, and no password is an argument."""

from pathlib import Path

from tests.cli.conftest import M5, Made


def test_a_sync_sends_a_whole_run_and_a_second_sync_sends_nothing(m5: M5, made: Made, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/other/mlflow.db"
    planned = m5("sync", made.run, "--to", uri, "--dry-run", "--json").document
    assert planned["page"] is None and planned["models"] == 1 and not (tmp_path / "other").exists()
    sent = m5("sync", made.run, "--to", uri, "--json").document
    assert sent["page"] and {**sent, "page": None} == planned
    again = m5("sync", made.run, "--to", uri)
    assert again.status == 0 and "sent 0 steps, 0 models and 0 datasets" in again.out and sent["page"] in again.out


def test_a_password_in_the_address_is_refused_and_not_repeated(m5: M5, made: Made) -> None:
    told = m5("sync", made.run, "--to", "https://ada:a-long-pass-phrase@mlflow.example.org")
    assert told.status == 2 and "MLFLOW_TRACKING_PASSWORD" in told.err and "a-long-pass-phrase" not in told.err


def test_an_address_that_is_no_server_is_refused(m5: M5, made: Made) -> None:
    assert m5("sync", made.run, "--to", "mlflow.example.org").status == 2


def test_a_workspace_without_mlflow_needs_the_address_of_a_server(m5: M5, made: Made) -> None:
    assert "--to" in m5("sync", made.run).err
