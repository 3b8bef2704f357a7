"""A run on a store that is away for a while: the outage is reported once, and the run is complete."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from m5ws import waits
from tests.support.s3.scripted_s3 import ScriptedS3
from tests.support.workspace.workspaces import Workspace, make_workspace

_AWAY_S = 6.0


class _Outage:
    """Fails each request from the first checkpoint on, for some seconds."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self.began_s: float | None = None
        self.refused = 0

    def __call__(self, method: str, key: str) -> str | None:
        if self.began_s is None and "/checkpoints/" in key and method == "PUT":
            self.began_s = time.monotonic()
        if self.began_s is None or time.monotonic() - self.began_s > _AWAY_S:
            return None
        self.refused += 1
        return self._fault


@pytest.fixture
def server(s3_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedS3]:
    # A busy machine may take a second for any request.
    monkeypatch.setattr(waits, "LIMIT_S", 2.5)
    monkeypatch.setattr(waits, "_POLL_S", 0.05)
    with ScriptedS3() as running:
        yield running


def _workspace(root: Path, server: ScriptedS3) -> Workspace:
    workspace = make_workspace(root, "fsdp.py", nproc=1)
    settings = workspace.root / "m5ws.toml"
    store = f'\n[store]\nurl = "s3://bucket/store"\nendpoint_url = "{server.endpoint}"\nregion = "eu-west-1"\n'
    settings.write_text(settings.read_text() + store)
    return workspace


@pytest.mark.parametrize("fault", ["SlowDown", pytest.param("reset", marks=pytest.mark.long)])
def test_an_outage_during_a_run_is_reported_once_with_its_cause(tmp_path: Path, server: ScriptedS3, fault: str) -> None:
    workspace, outage = _workspace(tmp_path / "w", server), _Outage(fault)
    workspace.m5ws("snapshot")
    server.always = outage
    done = workspace.m5ws("run", "--set", "pause_s=0.2")
    server.always = lambda method, key: None
    assert outage.refused > 2
    lines = [line for line in done.stderr.splitlines() if "the store s3:" in line]
    assert len(lines) == 2, done.stderr
    assert "has not answered for" in lines[0] and "answers again, after" in lines[1]
    # A busy machine may make a request wait for its time limit, which is then the cause.
    assert "SlowDown" not in lines[0] or fault == "SlowDown"
    shown = workspace.m5ws("show", done.stdout.strip()).stdout
    assert "finished" in shown and "save-failed" not in shown


@pytest.mark.long
def test_a_denied_save_is_one_notice_in_the_ledger(tmp_path: Path, server: ScriptedS3) -> None:
    workspace = _workspace(tmp_path / "w", server)
    workspace.m5ws("snapshot")
    server.always = lambda method, key: "AccessDenied" if method == "PUT" and "/checkpoints/0000000004" in key else None
    run = workspace.m5ws("run").stdout.strip()
    shown = workspace.m5ws("show", run).stdout
    assert shown.count("save-failed at step 4: ") == 1 and shown.count("save-failed") == 1
