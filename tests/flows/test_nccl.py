"""Real runs whose script writes a log as NCCL does: facts are recorded and compared, and a wrong network ends a run."""

import json
import socket
from pathlib import Path
from typing import TypeVar

import pytest

from m5ws.environment import attempt_environments
from m5ws.records.ledger import Event, NcclLogged, Notice, RankStarted
from m5ws.repository.ledger import ledger
from tests.support.machine.nccl_facts import read
from tests.support.paths import ROOT
from tests.support.workspace.workspaces import Workspace, make_file_workspace

E = TypeVar("E", bound=Event)
_LOGS = ROOT / "tests" / "data" / "nccl"
_SCRIPT = """\
import os, sys, time
from pathlib import Path
log = os.environ.get("NCCL_DEBUG_FILE", "")
if log.endswith(".nccl"):
    assert os.environ["NCCL_DEBUG"] == "INFO"
    Path(log.replace("%p", str(os.getpid()))).write_text(Path(sys.argv[1]).read_text())
if "hang" in sys.argv:
    time.sleep(600)
Path("out").mkdir(exist_ok=True)
Path("out/result.txt").write_text("1")
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = make_file_workspace(tmp_path_factory.mktemp("nccl") / "w")
    (made.root / "train.py").write_text(_SCRIPT)
    return made


def _events(workspace: Workspace, run: str, kind: type[E]) -> list[E]:
    return [event for _, event in ledger.read_events(workspace.repo, run, 1, ("0", "node")) if isinstance(event, kind)]


def test_facts_of_the_log_are_recorded_and_compared(workspace: Workspace) -> None:
    logs = ("2.5.7-ib.log", "2.5.7-ib.log", "libfabric-p5en.log")
    first, same, other = (workspace.train("--", "train.py", str(_LOGS / log)) for log in logs)
    [logged] = _events(workspace, first, NcclLogged)
    assert (logged.rank, logged.facts) == (0, read((_LOGS / "2.5.7-ib.log").read_text()))
    assert attempt_environments.between_runs(workspace.repo, first, same) == ()
    changes = {change.name: change for change in attempt_environments.between_runs(workspace.repo, first, other)}
    channels = changes["nccl.channels"]
    assert (channels.old, channels.new, channels.rating) == ("2", "8", "can")
    assert {"nccl.network", "nccl.rings", "nccl.trees"} <= changes.keys()


def test_the_log_of_the_user_is_left_alone_and_rules_are_notices(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "pkgconfig").mkdir()
    (tmp_path / "libnccl-net-ofi.so").write_bytes(b"\x7fELF\0Initializing aws-ofi-nccl 1.7.4-aws\0")
    (tmp_path / "libfabric.so.1").write_bytes(b"\x7fELF")
    (tmp_path / "pkgconfig" / "libfabric.pc").write_text("Name: libfabric\nVersion: 1.18.0amzn4.0\n")
    variables = {"FI_EFA_FORK_SAFE": "1", "RDMAV_FORK_SAFE": "1", "NCCL_DEBUG_FILE": str(tmp_path / "mine.nccl.log")}
    variables["LD_LIBRARY_PATH"] = str(tmp_path)
    done = workspace.m5ws("run", "--json", "--", "train.py", "x", environment=variables)
    run = json.loads(done.stdout)["run"]["id"]
    assert _events(workspace, run, NcclLogged) == []
    [started] = _events(workspace, run, RankStarted)
    assert started.facts["nccl.log"] == "not recorded: NCCL_DEBUG_FILE is set"
    lines = [notice.message for notice in _events(workspace, run, Notice) if notice.kind == "network"]
    hazard, harmless = lines
    assert (
        hazard.startswith("warning: RDMAV_FORK_SAFE = 1 can hang or abort the run")
        and "Unset RDMAV_FORK_SAFE" in hazard
    )
    assert harmless.startswith("FI_EFA_FORK_SAFE = 1 has no effect here")
    assert all(f"network: {line}" in done.stderr for line in lines)


def test_a_run_through_sockets_ends_if_efa_is_wanted(workspace: Workspace) -> None:
    log, host = str(_LOGS / "socket-two-nodes.log"), socket.gethostname()
    arguments = ("run", "--name", "slow", "--", "train.py", log, "hang")
    done = workspace.m5ws(*arguments, environment={"FI_PROVIDER": "efa"}, expect=1)
    sentence = f"NCCL of rank 0 on node {host} sends through NET/Socket, and FI_PROVIDER=efa asks for EFA"
    assert f"{sentence}: " in done.stderr
    assert sentence in workspace.m5ws("show", "slow").stdout
