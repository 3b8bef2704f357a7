"""Requests of commands on a distant store: few, whatever the number of runs of others, and fewer when repeated.

They are counted at the server, an S3 server in memory.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from m5ws.records.store import Format
from m5ws.repository.repository import Repository
from tests.support.records import many_runs
from tests.support.s3.s3_servers import descriptions_read_once
from tests.support.s3.scripted_s3 import ScriptedS3
from tests.support.stores.memory_store import MemoryStore
from tests.support.workspace.workspaces import Workspace, make_workspace

_MOST = {"ls": 12, "show": 10, "logs": 10, "snapshot": 6, "run": 60}
_OTHERS = [20, pytest.param(2000, marks=pytest.mark.soak)]


@pytest.fixture(params=_OTHERS)
def server(request: pytest.FixtureRequest, s3_environment: None) -> Iterator[ScriptedS3]:
    """A server with the runs of others."""
    store = MemoryStore()
    many_runs.fill(Repository.create(store, Format(home_region="eu-west-1")), request.param)
    with descriptions_read_once(), ScriptedS3() as running:
        running.objects |= {key: data for key, (data, _) in store.objects.items()}
        yield running


@pytest.fixture
def machine(tmp_path: Path, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Workspace]:
    """Makes a workspace of 12 steps on a machine of its own, with an empty cache."""

    def make(name: str) -> Workspace:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name / "cache"))
        workspace = make_workspace(tmp_path / name / "w", "plain.py", nproc=1, run='outputs = ["out"]')
        workspace.edit("config.yaml", "steps: 10", "steps: 12")
        settings = workspace.root / "m5ws.toml"
        store = f'\n[store]\nurl = "s3://bucket/store"\nendpoint_url = "{server.endpoint}"\n'
        settings.write_text(settings.read_text() + store)
        return workspace

    return make


def _count(server: ScriptedS3, workspace: Workspace, *words: str) -> int:
    """Return the number of requests of a command, without more parts of a log than one: a slow run has several."""
    server.requests.clear()
    workspace.m5ws(*words)
    return sum(re.search(r"^logs/.*-0*[1-9]\d*$", key) is None for _, key, _ in server.requests)


def test_commands_on_a_distant_store_send_few_requests(server: ScriptedS3, machine: Callable[[str], Workspace]) -> None:
    own = machine("own")
    own.m5ws("snapshot")
    first, again = (_count(server, own, "snapshot") for _ in range(2))
    assert first <= _MOST["snapshot"] and again <= _MOST["snapshot"] / 2
    server.requests.clear()
    run = own.train()
    assert len(server.requests) <= _MOST["run"], [(method, key) for method, key, _ in server.requests]
    for name, words in (("ls", ("ls",)), ("show", ("show", many_runs.run_id(3))), ("show", ("show", run)),
                        ("logs", ("logs", run))):  # fmt: skip
        other = machine("-".join(words))
        first, again = (_count(server, other, *words) for _ in range(2))
        requests = [(method, key) for method, key, _ in server.requests]
        assert first <= _MOST[name] and again <= _MOST[name] / 2, (words, first, again, requests)
