"""A launched process inherits file descriptors and variables."""

import json
import sys
import time
from pathlib import Path

from m5ws.launch.local import LocalLauncher
from m5ws.records.launch import LaunchRequest


def test_a_variable_that_is_unset_is_not_inherited_and_one_that_is_set_anew_is(tmp_path: Path) -> None:
    request = LaunchRequest(
        argv=(sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"),
        cwd=str(tmp_path),
        environment={"SET": "new"},
        log=str(tmp_path / "log"),
        unset=("GONE",),
    )
    process = LocalLauncher({"GONE": "1", "SET": "old", "KEPT": "1"}).launch(request)
    while process.poll() is None:
        time.sleep(0.01)
    found = json.loads((tmp_path / "log").read_text())
    assert "GONE" not in found and (found["SET"], found["KEPT"]) == ("new", "1")
