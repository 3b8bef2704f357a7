"""The README and the tutorial: each command is run as typed, and prints the lines that the page shows."""

import os
import re
import sysconfig
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.workspace import command_line, transcripts
from tests.support.workspace.checkouts import commit_all

_SCRIPTS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "tutorial.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.long
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(ROOT / "README.md", id="readme"),
        pytest.param(ROOT / "docs" / "tutorial.md", id="tutorial", marks=pytest.mark.soak),
    ],
)
def test_documented_commands_print_the_documented_lines(page: Path, tmp_path: Path) -> None:
    root = tmp_path / "mine"
    root.mkdir()
    (root / "train.py").write_text(_SCRIPTS[0])
    commit_all(root)
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    environment = command_line.inherited() | {"PATH": path, "COLUMNS": "160"}
    for command in transcripts.read(page, is_whole=False):
        if "session.py" in command.text:
            (root / "session.py").write_text(_SCRIPTS[0][: _SCRIPTS[0].index("for step in")] + _SCRIPTS[1])
        transcripts.check(command, root, environment)
        if command.text == "m5ws init":
            # A page in MLflow costs more than a run. Other tests look at pages.
            settings = root / "m5ws.toml"
            settings.write_text(settings.read_text().replace("# enabled = true", "enabled = false"))
