"""DeepSpeed in ranks of its own: scenarios of tests/training/scripts/deepspeed_lab.py, and their results."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.ranks import forks

PACKAGE = Path(__file__).parents[3]
SCRIPTS = PACKAGE / "tests" / "training" / "scripts"


def lab(parents: forks.ForkParents, directory: Path, ranks: int, *scenarios: str) -> Path:
    """Run scenarios of deepspeed_lab.py in one set of ranks; return the directory of their results."""
    out = directory / f"found-{ranks}"
    out.mkdir()
    status, log = forks.run(
        parents,
        *(str(SCRIPTS / "deepspeed_lab.py"), str(directory / "store"), str(out), *scenarios),
        directory=directory,
        ranks=ranks,
        deepspeed=True,
        environment={"GLOO_SOCKET_IFNAME": "lo"},
    )
    assert status == 0, log[-4000:]
    return out


def found(out: Path, scenario: str, rank: int = 0) -> Any:
    return json.loads((out / f"{scenario}-{rank}.json").read_text())


def build_operator() -> Path:
    """Build CPUAdam's operator, as the supervisor does before a launch, and return its path."""
    done = subprocess.run(
        [sys.executable, "-m", "m5ws.training.backends.deepspeed.cpu_adam"],
        env=os.environ | {"PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[-1])
