"""An attempt with a rank that hangs ends, names the rank and its line, and leaves no process. A slow rank is named."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from m5ws.agent import sampler
from m5ws.records.ledger import Notice, Phase, Stacks
from m5ws.repository.ledger import ledger
from m5ws.runs import state
from tests.support.campaigns import soak_page
from tests.support.machine import run_processes
from tests.support.machine.agents import NODES, Agents
from tests.support.waiting import is_alive
from tests.support.workspace.workspaces import SCRIPTS, Workspace, make_workspace

_FLOOR_S = 2
_END_S = 60.0
_LINES = {
    "stopped": "os.kill(", "sleep": "time.sleep(", "regex": "re.match(", "gil": "ctypes.PyDLL(", "read": "os.open(",
    "lock": "lock.acquire()", "mismatch": "group=other", "worker": "next(loader)",
}  # fmt: skip
"""The kinds of stops, and the line of the script at which the rank is."""
_WORLDS = (2, 4, 16)
"""The numbers of ranks. The largest is tried on two nodes only."""
_HEADER = ("| nodes | ranks | kind | cases | named | unknown | wrong |", "|---|---|---|---|---|---|---|")


def _places(kind: str) -> list[str]:
    files = {"train.py": "stuck.py", "hangs.py": "hangs.py"}
    lines = ((name, *line) for name, of in files.items() for line in enumerate((SCRIPTS / of).open(), 1))
    return [f"{name}:{number}" for name, number, line in lines if _LINES[kind] in line]


def _workspace(root: Path, kind: str, culprit: int, world: int) -> Workspace:
    workspace = make_workspace(root, "stuck.py", nproc=world, run=f"stuck = {{floor_s = {_FLOOR_S}}}")
    (workspace.root / "hangs.py").write_bytes((SCRIPTS / "hangs.py").read_bytes())
    workspace.edit("m5ws.toml", '["train.py"]', f'["train.py", "{kind}", "{culprit}"]')
    return workspace


def _assert_ended(workspace: Workspace, run: str, kind: str, culprit: int, world: int) -> Any:
    """Assert that the attempt ended as stuck, with evidence and without processes; return its cause."""
    [attempt] = state.load(workspace.repo, run).attempts
    assert attempt.standing == "failed"
    assert attempt.reason is not None and attempt.reason.kind == "stuck"
    document = workspace.json("cause", run)
    assert document["cause"]["kind"] == "stuck"
    assert [stack["rank"] for stack in document["stacks"]] == list(range(world))
    assert all(stack["frames"] for stack in document["stacks"])
    stacks = [event for _, event in ledger.read_events(workspace.repo, run, 1) if isinstance(event, Stacks)]
    assert len(stacks) == 1
    assert not any(is_alive(stack.pid) for stack in stacks[0].ranks)
    assert all("cannot be asked" in (stack.unrecorded or "") for stack in stacks[0].ranks)  # The script uses gloo.
    assert {node.host for node in stacks[0].nodes} == {stack.host for stack in stacks[0].ranks}
    assert [node["host"] for node in document["nodes"]] == [node.host for node in stacks[0].nodes]
    end = ledger.ended(workspace.repo, run, 1)
    assert end is not None and end.time_s - stacks[0].time_s < _END_S
    late = [stack for stack in stacks[0].ranks if stack.is_late]
    assert late and all(_FLOOR_S <= stack.limit_s <= stack.waited_s for stack in late)
    if document["cause"]["rank"] == str(culprit):
        assert document["cause"]["place"] in _places(kind)
    return document["cause"]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "culprit"), [("stopped", 1), ("read", 0)])
def test_a_rank_that_hangs_is_named_and_no_process_is_left(tmp_path: Path, kind: str, culprit: int) -> None:
    workspace = _workspace(tmp_path / "w", kind, culprit, 2)
    output = workspace.m5ws("run", expect=1)
    run = output.stdout.split()[0]
    assert _assert_ended(workspace, run, kind, culprit, 2)["rank"] == str(culprit)
    text = workspace.m5ws("cause", run).stdout
    assert f"rank {culprit}, on " in text and f"rank {1 - culprit} on " in text and "waiting in all_reduce" in text
    assert "no progress for" in workspace.m5ws("show", run).stdout
    phases = [event.name for origin, event in ledger.read_events(workspace.repo, run, 1) if isinstance(event, Phase)]
    assert {"step", "evaluation", "save"} == set(phases)


@pytest.mark.long
@pytest.mark.parametrize(("end", "kind"), [("finishes", "stuck"), ("fails", "script-error")])
def test_a_process_that_does_not_end_after_its_script_is_ended_and_named(tmp_path: Path, end: str, kind: str) -> None:
    workspace = make_workspace(tmp_path / "w", "lingering.py", run="stuck = {floor_s = 2, ceiling_s = 15}")
    workspace.edit("m5ws.toml", '["train.py"]', f'["train.py", "{end}"]')
    run = workspace.process("run", expect=1).stdout.split()[0]
    assert run_processes.commands(run) == []
    document = workspace.json("cause", run)
    assert (document["cause"]["kind"], document["cause"]["rank"]) == (kind, "1")
    assert [(stack["rank"], stack["phase"], stack["is_late"]) for stack in document["stacks"]] == [
        (0, "exit", False),
        (1, "exit", True),
    ]


@pytest.mark.long
def test_a_slow_rank_is_reported_once_and_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_INTERVAL_S", 0.02)
    monkeypatch.setattr(sampler, "_REST", 0)
    workspace = make_workspace(tmp_path / "w", "slow.py", nproc=2)
    workspace.edit("m5ws.toml", '["train.py"]', '["train.py", "data", "1", "1500"]')
    output = workspace.m5ws("run")
    run = output.stdout.split()[0]
    notices = [event for _, event in ledger.read_events(workspace.repo, run, 1) if isinstance(event, Notice)]
    [slow] = [notice for notice in notices if notice.kind == "slow-rank"]
    assert slow.message.startswith("rank 1 on ") and "in its data" in slow.message
    assert "slow-rank" in output.stderr and slow.message in workspace.m5ws("show", run).stdout
    assert state.load(workspace.repo, run).attempts[0].standing == "finished"


@pytest.mark.soak
def test_each_kind_of_stop_is_named_on_each_rank(
    tmp_path: Path, cluster: Callable[[Workspace], Agents], request: pytest.FixtureRequest
) -> None:
    """All kinds on each rank of 2, 4 and 16 ranks on 1 and 2 nodes, in random order, or `--campaign-count` of them."""
    cases = [
        (nodes, world, kind, culprit)
        for world in _WORLDS
        for nodes in ((1, NODES) if world < _WORLDS[-1] else (NODES,))
        for kind in _LINES
        for culprit in range(world)
    ]
    random.Random(request.config.getoption("--campaign-seed") or 0).shuffle(cases)
    counts: dict[tuple[int, int, str], list[int]] = {}
    for number, (nodes, world, kind, culprit) in enumerate(cases[: request.config.getoption("--campaign-count")]):
        workspace = _workspace(tmp_path / f"{number}", kind, culprit, world)
        if nodes == 1:
            run = workspace.process("run", expect=1).stdout.split()[0]
        else:
            agents = cluster(workspace)
            agents.start("first")
            assert agents.end() == [1, 1]
            run = agents.run
        assert run_processes.commands(run) == []
        rank = _assert_ended(workspace, run, kind, culprit, world)["rank"]
        late = [each for each in workspace.json("cause", run)["stacks"] if each["is_late"]]
        assert all(each["waited_s"] < 2 * each["limit_s"] for each in late), late
        outcomes = counts.setdefault((nodes, world, kind), [0, 0, 0])
        outcomes[0 if rank == str(culprit) else 1 if rank == "" else 2] += 1
        print(f"{nodes} nodes, {world} ranks, {kind} on {culprit}: {rank or 'unknown'}")
        named, unknown, wrong = outcomes
        row = f"| {nodes} | {world} | {kind} | {named + unknown + wrong} | {named} | {unknown} | {wrong} |"
        soak_page.put("stuck", _HEADER, row, cells=3)
    assert not any(wrong for _, _, wrong in counts.values())
    assert not any(unknown for (_, world, kind), (_, unknown, _) in counts.items() if (world, kind) != (2, "mismatch"))
