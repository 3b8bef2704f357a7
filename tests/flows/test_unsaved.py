"""A run with results missing in the store has not finished: status 5, and nothing is lost."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from m5ws.outputs import storing
from m5ws.records.launch import UNSAVED
from m5ws.repository.repository import Repository
from m5ws.runs import history
from m5ws.store import open_store
from tests.support.network.proxies import FaultProxy
from tests.support.s3.s3_servers import S3Server
from tests.support.workspace.workspaces import Workspace, make_file_workspace, make_workspace

_DIRECTORY = """
def away():
    store = Path(context.active().context.store)
    if store.exists():
        os.rename(store, store.with_name("away"))
"""
_BUCKET = """
def away():
    import urllib.request
    urllib.request.urlopen(urllib.request.Request({!r}, data=b'{{"rates": {{"denied": 1.0}}}}', method="PUT")).read()
"""
_AWAY = """
import os
from pathlib import Path
from m5ws.training.checkpoint import checkpointing
from m5ws.training.runtime import context
checkpointing._PAUSE_S = 0.01
{}
from m5ws.repository.references import checkpoints
_publish = checkpoints.publish
def publish(repo, checkpoint, began=None):
    if checkpoint.step == 10 and checkpoint.attempt == 1 and "unsaved" not in repo.store.url:
        away()
    return _publish(repo, checkpoint, began)
checkpoints.publish = publish
"""


def _back(workspace: Workspace) -> None:
    home = workspace.root / ".m5ws"
    (home / "away").rename(home / "store")


def _run(workspace: Workspace) -> tuple[str, str]:
    done = workspace.m5ws("run", "--no-progress", expect=5)
    return done.stdout.strip(), done.stderr


class _Unsaved(msgspec.Struct, frozen=True):
    """A run whose store was unreachable during its last save, and is back."""

    workspace: Workspace
    store: str
    run: str

    @property
    def repo(self) -> Repository:
        return Repository.open(open_store(self.store))


def _train(workspace: Workspace, away: str) -> str:
    workspace.edit("train.py", "\nimport m5ws\n", f"\nimport m5ws\n{_AWAY.replace('{}', away)}")
    run, output = _run(workspace)
    assert "unsaved" in output and "after step 10" in output and f"m5ws resume {run}" in output
    return run


def _in_directory(root: Path, ranks: int) -> _Unsaved:
    workspace = make_workspace(root, "fsdp.py", nproc=ranks)
    run = _train(workspace, _DIRECTORY)
    _back(workspace)
    return _Unsaved(workspace, str(workspace.root / ".m5ws" / "store"), run)


def _in_bucket(root: Path, server: S3Server) -> _Unsaved:
    workspace, bucket = make_workspace(root, "fsdp.py", nproc=2), server.bucket()
    with FaultProxy(server.endpoint.removeprefix("http://")) as proxy:
        store = f'\n[store]\nurl = "s3://{bucket}/team"\nendpoint_url = '
        text = (workspace.root / "m5ws.toml").read_text()
        (workspace.root / "m5ws.toml").write_text(f'{text}{store}"{proxy.endpoint}"\n')
        run = _train(workspace, _BUCKET.format(proxy.admin_url))
    (workspace.root / "m5ws.toml").write_text(f'{text}{store}"{server.endpoint}"\n')
    return _Unsaved(workspace, server.url(bucket, "team"), run)


@pytest.fixture(
    params=[
        "directory-1",
        pytest.param("directory-2", marks=pytest.mark.long),
        pytest.param("bucket-2", marks=pytest.mark.soak),
    ]
)
def unsaved(tmp_path: Path, request: pytest.FixtureRequest) -> _Unsaved:
    kind, ranks = request.param.split("-")
    if kind == "directory":
        return _in_directory(tmp_path / "w", int(ranks))
    request.getfixturevalue("s3_environment")
    return _in_bucket(tmp_path / "w", request.getfixturevalue("s3_server"))


def test_a_last_checkpoint_that_was_kept_is_stored_by_the_next_command(unsaved: _Unsaved) -> None:
    workspace, run = unsaved.workspace, unsaved.run
    shown = workspace.m5ws("show", run).stdout
    assert "attempt 1: finished" in shown and "0000000010-0001" in shown and "kept on this machine" in shown
    assert "has finished" in workspace.m5ws("resume", run, expect=2).stderr
    assert workspace.m5ws("fsck", "--read-data").returncode == 0
    assert not (workspace.root / ".m5ws" / "runs" / run / "0001" / UNSAVED).exists()
    assert sorted(history.load(unsaved.repo, run).contents) == [4, 8, 10]


def test_a_run_with_a_lost_last_checkpoint_is_resumed_from_an_earlier_checkpoint(unsaved: _Unsaved) -> None:
    workspace, run = unsaved.workspace, unsaved.run
    for path in (workspace.root / ".m5ws" / "runs" / run / "0001" / UNSAVED).rglob("runs/*/checkpoints/*"):
        path.unlink()
    assert "unsaved" in workspace.m5ws("ls").stdout
    workspace.m5ws("resume", run)
    recorded = history.load(unsaved.repo, run)
    assert (sorted(recorded.contents), recorded.begun, recorded.outcome) == ([4, 8, 10], [(0, 1), (8, 2)], "finished")
    assert workspace.m5ws("fsck").returncode == 0


def test_a_store_that_is_unavailable_at_the_end_gets_the_ledger_later(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=1)
    workspace.edit(
        "train.py",
        "\nimport m5ws\n",
        f"\nimport m5ws\n{_AWAY.replace('{}', _DIRECTORY).replace('checkpoint.step == 10', 'False')}",
    )
    text = (workspace.root / "train.py").read_text()
    (workspace.root / "train.py").write_text(f"{text}\naway()\n")
    run, output = _run(workspace)
    assert "complete ledger" in output
    _back(workspace)
    assert "attempt 1: finished" in workspace.m5ws("show", run).stdout


def test_output_files_that_could_not_be_stored_are_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = make_file_workspace(tmp_path / "w")
    store = workspace.root / ".m5ws" / "store"
    publish = storing.publish

    def away(*given: Any) -> Any:
        if store.exists():
            store.rename(store.with_name("away"))
        return publish(*given)

    with monkeypatch.context() as patched:
        patched.setattr(storing, "publish", away)
        run, output = _run(workspace)
    assert "output files" in output
    _back(workspace)
    assert "attempt 1: finished" in workspace.m5ws("show", run).stdout
    assert workspace.history(run).outputs is not None
    assert workspace.m5ws("fsck", "--read-data").returncode == 0
