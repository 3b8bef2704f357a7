"""The demo of the README, as `make demo` runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_DEMO = Path(__file__).parents[2] / "examples" / "demo.sh"


@pytest.mark.soak
def test_the_demo_runs_to_its_end(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        (_DEMO, tmp_path / "d"),
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout.count("REPRODUCED"), done.stdout.count("DIVERGED")) == (1, 1)
