"""A scheduler asks torchrun to end: the ranks get the configured time for a last checkpoint."""

import os
import signal
import time
from pathlib import Path

import pytest

from m5ws.launch import reaper
from m5ws.records.failure import EndReason, Failure
from m5ws.repository.references import checkpoints
from m5ws.runs import state
from tests.support.workspace.workspaces import make_workspace

_LIMIT_S = 240.0
_SLOW = """\
    def state_dict(self) -> dict:
        if Path({ready!r}).exists():
            time.sleep(33)
"""
_WAITS = """\
    if step.number == 6:
        open({ready!r}, "w").close()
        while context.active().stop.seconds_left(0) is None:
            time.sleep(0.05)
    x, y = step.next_batch()
"""


@pytest.mark.long
def test_torchrun_waits_for_a_last_checkpoint_longer_than_its_own_timeout(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=1)
    workspace.edit("small.py", "    def state_dict(self) -> dict:\n", _SLOW.format(ready=str(ready)))
    workspace.edit("small.py", "import random\n", "import random\nimport time\n")
    workspace.edit("train.py", "    x, y = step.next_batch()\n", _WAITS.format(ready=str(ready)))
    workspace.edit("train.py", "import m5ws\n", "import m5ws\nfrom m5ws.training.runtime import context\n")
    with open(workspace.root / "m5ws.toml", "a", encoding="utf-8") as settings:
        settings.write("\n[checkpoint]\ndeadline_s = 60\n")
    with workspace.start("run", "--no-progress") as process:
        end_s = time.monotonic() + _LIMIT_S
        while not ready.exists():
            assert process.poll() is None and time.monotonic() < end_s
            time.sleep(0.05)
        lines = {pid: reaper.command_line(pid) for pid in reaper.descendants(process.pid)}
        [torchrun] = [pid for pid, line in lines.items() if "-m torch.distributed.run" in line and " -I " not in line]
        os.kill(torchrun, signal.SIGTERM)
        output, _ = process.communicate(timeout=_LIMIT_S)
    [run] = [row["id"] for row in workspace.json("ls")["runs"]]
    [attempt] = state.load(workspace.repo, run).attempts
    failure = Failure(signal=signal.SIGTERM)
    assert (attempt.standing, attempt.reason) == ("failed", EndReason(kind="ranks failed", failure=failure)), output
    assert checkpoints.step_of(checkpoints.valid(workspace.repo, run)[-1]) == 6
    ready.unlink()
    workspace.m5ws("resume", run, "--no-progress")
    assert state.load(workspace.repo, run).standing == "finished"
