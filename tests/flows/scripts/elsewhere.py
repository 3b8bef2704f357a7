"""Processes of flows that are killed: `m5ws` in a workspace, with ranks that are forks."""

import os
import sys
from pathlib import Path

from m5ws.agent import delivery
from m5ws.attempts import interventions
from m5ws.records import determinism
from m5ws.records.environment import Determinism
from tests.support.ranks.forks import ForkParents
from tests.support.workspace import command_line

_PARENTS = ForkParents()
_LOOK_S = 0.2


def _at_start() -> dict[str, str]:
    """Return the variables of a rank that are read when Python starts."""
    folders = [str(Path(part).resolve()) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    fixed = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(folders)}
    return {**os.environ, **determinism.environment(Determinism()), **fixed}


def m5ws(root: str, *words: str) -> None:
    """Like `near`, with work directories of the workspace's own, as if it were on a machine of its own."""
    os.environ["XDG_STATE_HOME"] = f"{root}-state"
    near(root, *words)


def near(root: str, *words: str) -> None:
    """Run a command line in a workspace; print its exit status and then its output. Ranks find its process id."""
    # With another name, each process would ask torch again: m5ws knows that torch reads no `PYTEST_*`.
    os.environ["PYTEST_SUPERVISOR"] = str(os.getpid())
    assert interventions._INTERVAL_S > _LOOK_S
    interventions._INTERVAL_S = _LOOK_S
    with command_line.forked_ranks(_PARENTS):
        done = command_line.call("-C", root, *words)
    sys.stdout.write(f"{done.returncode}\n{done.stdout}{done.stderr}")


def mute(root: str, *words: str) -> None:
    """Like `m5ws`, but publish nothing to the ledger before the attempt ends."""
    delivery.Delivery._due = lambda *_: False
    m5ws(root, *words)


VERBS = {"m5ws": m5ws, "mute": mute, "near": near}
_PARENTS.parent(_at_start(), deepspeed=os.environ.get("RANKS_USE_DEEPSPEED") == "1")
