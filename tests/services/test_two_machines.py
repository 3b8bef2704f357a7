"""A run that is alive on one machine, looked at from another, and resumed there when the first is cut off or lost.

The machines are namespaces with networks and host names of their own, which share nothing but a store in S3.
"""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import loud_skip
from tests.support.network import namespaces
from tests.support.network.namespaces import ADDRESS, Machine, Network
from tests.support.s3.s3_servers import ENVIRONMENT
from tests.support.workspace.checkouts import commit_all, git
from tests.support.workspace.workspaces import Workspace, make_workspace

pytestmark = pytest.mark.services

_PORT = 9000
_BUCKET = "team"
_TIMEOUT_S = 300.0
_SUPERSEDED = 4
_MOTO = Path(__file__).parents[1] / "support" / "s3" / "moto_server.py"
_MAKE_BUCKET = f"""
import boto3
client = boto3.client("s3", endpoint_url="http://{ADDRESS}:{_PORT}")
client.create_bucket(Bucket="{_BUCKET}", CreateBucketConfiguration={{"LocationConstraint": "eu-west-1"}})
"""


class _Team:
    """Two machines with a workspace each, and the server's log of requests."""

    def __init__(self, net: Network, folder: Path) -> None:
        self.net, self.folder = net, folder
        self.here, self.there = net.machines.values()
        self.requests = folder / "requests"
        self.held = folder / "held"
        net.server.start([sys.executable, str(_MOTO), str(_PORT), ADDRESS], ENVIRONMENT, self.requests)
        _until(lambda: self._run(net.server, sys.executable, "-c", _MAKE_BUCKET)[0] == 0)
        first = _workspace(folder / "here", self.held)
        git(folder, "clone", "--quiet", str(first.root), str(folder / "there"))
        self.roots = {self.here: first.root, self.there: folder / "there"}
        assert self.m5ws(self.here, "snapshot")[0] == 0  # It makes the store.

    def start(self, machine: Machine, *words: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "m5ws", "-C", str(self.roots[machine]), *words]
        return machine.start(command, ENVIRONMENT, self.folder / f"{machine.host}.log")

    def m5ws(self, machine: Machine, *words: str) -> tuple[int, str]:
        """Return the exit status, and all that was printed."""
        return self._run(machine, sys.executable, "-m", "m5ws", "-C", str(self.roots[machine]), *words)

    def json(self, machine: Machine, *words: str) -> Any:
        status, said = self.m5ws(machine, words[0], "--json", *words[1:])
        assert "{" in said, f"{words}: {status}\n{said}"
        return json.JSONDecoder().raw_decode(said[said.index("{") :])[0]

    def _run(self, machine: Machine, *command: str) -> tuple[int, str]:
        log = self.folder / "said"
        log.unlink(missing_ok=True)
        status = machine.start(command, ENVIRONMENT, log).wait(_TIMEOUT_S)
        return status, log.read_text(errors="replace")

    def saved(self, run: str) -> list[int]:
        """Return the steps of a run's checkpoints."""
        return [row["checkpoint"]["step"] for row in self.json(self.there, "show", run)["checkpoints"]]

    def written(self, machine: Machine, below: str) -> list[str]:
        """Return the requests of a machine that have written or deleted something, by its place in the store."""
        form = rf'^{re.escape(self.net.address(machine))} .*"(?:PUT|POST|DELETE) /{_BUCKET}/([^ ?]*)'
        log = self.requests.read_text(errors="replace")
        return [key for key in re.findall(form, log, re.MULTILINE) if key.startswith(f"store/{below}")]


def _workspace(root: Path, held: Path) -> Workspace:
    """Return a workspace whose training stands still after step 6 in this folder while a file is there."""
    made = make_workspace(root, "fsdp.py", trainer="python", nproc=1)
    for line in ("fully_shard(model.up)\n", "fully_shard(model)\n", 'dist.init_process_group("gloo")\n'):
        made.edit("train.py", line, "")
    made.edit("train.py", "rank = dist.get_rank()", "rank = 0")
    made.edit("train.py", "dist.destroy_process_group()\n", "")
    condition = f"step.number == 6 and os.path.exists({str(held)!r}) and {str(root)!r} in os.environ['M5WS_CONTEXT']"
    made.edit("train.py", 'time.sleep(settings["pause_s"])', f"while {condition}:\n        time.sleep(0.05)")
    made.edit("train.py", "import time\n", "import os\nimport time\n")
    made.edit("config.yaml", "hidden: 128", "hidden: 16")
    with open(made.root / "m5ws.toml", "a", encoding="utf-8") as settings:
        settings.write(f'\n[store]\nurl = "s3://{_BUCKET}/store"\nendpoint_url = "http://{ADDRESS}:{_PORT}"\n')
    commit_all(made.root)
    return made


def _until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _TIMEOUT_S
    while not holds():
        assert time.monotonic() < end_s, "it never came to be"
        time.sleep(0.2)


@pytest.fixture
def team(tmp_path: Path) -> Iterator[_Team]:
    if (absent := namespaces.missing()) is not None:
        loud_skip(f"two machines: {absent}")
    with namespaces.network("node-a", "node-b") as net:
        yield _Team(net, tmp_path)


def _alive(team: _Team) -> tuple[str, "subprocess.Popen[bytes]"]:
    """Start a run on the first machine; return it when it stands still after its first checkpoint."""
    team.held.touch()
    process = team.start(team.here, "run", "--no-progress")

    def stands_still() -> bool:
        assert process.poll() is None, (team.folder / "node-a.log").read_text()
        rows = team.json(team.there, "ls")["runs"]
        # The step that it stands still in is not done.
        return bool(rows) and rows[0]["last_step"] == 5 and team.saved(rows[0]["id"]) == [4]

    _until(stands_still)
    return team.json(team.there, "ls")["runs"][0]["id"], process


@pytest.mark.parametrize("end", ["the link is cut", "the machine is lost"])
def test_a_living_run_is_looked_at_from_another_machine_and_resumed_there(team: _Team, end: str) -> None:
    run, process = _alive(team)
    for words in (["ls"], ["show", run], ["fsck"], ["gc"], ["gc", "--dry-run"], ["logs", run]):
        team.m5ws(team.there, *words)
    assert "attempt 1: running" in team.m5ws(team.there, "show", run)[1]
    judged = team.json(team.there, "reproduce", run)
    assert judged["outcome"] == "sampled" and "end of the original is not recorded" in judged["reason"], judged
    status, said = team.m5ws(team.there, "run", "--resume", run)
    assert status == 2 and "attempt 1 on node-a" in said and "--take-over" in said, said
    assert re.search(r"last sign of life is \d:\d\d:\d\d", said), said
    assert team.written(team.here, f"runs/{run}/ledger/0001/") and not team.written(team.there, f"runs/{run}/")
    if end == "the machine is lost":
        team.here.lose()
        shutil.rmtree(team.roots[team.here])
    else:
        team.net.link(team.here, up=False)
    status, said = team.m5ws(team.there, "run", "--resume", run, "--take-over", "--no-progress")
    assert status == 0, said
    assert not team.written(team.there, f"runs/{run}/ledger/0001/")
    if end == "the link is cut":
        team.net.link(team.here, up=True)
        team.held.unlink()
        assert process.wait(_TIMEOUT_S) == _SUPERSEDED, (team.folder / "node-a.log").read_text()
        assert "attempt 2 on node-b" in (team.folder / "node-a.log").read_text()
    shown = team.json(team.there, "show", run)
    assert [attempt["host"] for attempt in shown["state"]["attempts"]] == ["node-a", "node-b"]
    assert shown["standing"] == "finished"
    # From its first step on, by a replay that nobody disturbed.
    judged = team.json(team.there, "reproduce", run)
    assert judged["outcome"] == "reproduced" and judged["compared"]["checkpoints"] == 3, judged
    assert team.m5ws(team.there, "fsck")[0] == 0
