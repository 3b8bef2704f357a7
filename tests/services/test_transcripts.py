"""The transcripts in docs/transcripts: each command is run as typed, and prints the lines that the page shows."""

import os
import re
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.services.conftest import Versions
from tests.support.paths import ROOT
from tests.support.workspace import command_line, transcripts

pytestmark = pytest.mark.soak

_FOLDER = ROOT / "docs" / "transcripts"
_PAGES = {"hydra-wandb-src-layout": "hydra", "lightning-ddp": "lightning", "trainer-zero-offload": "hf-trainer"}
"""The example from which each page begins."""
_AUTHOR = {"NAME": "A", "EMAIL": "a@example.org"}
_GIT = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in _AUTHOR.items()}


@pytest.fixture(scope="module")
def environment(interpreter: Callable[[Versions], Path]) -> dict[str, str]:
    """Variables of a shell in which `python`, `pip` and `m5ws` are the programs of an environment with frameworks."""
    python = interpreter("transcripts")
    for name, entry in (
        ("m5ws", "m5ws.__main__ import program"),
        ("pip", "pip._internal.cli.main import main as program"),
    ):
        script = python.with_name(name)
        script.write_text(f"#!{python}\nimport sys\nfrom {entry}\nsys.exit(program())\n")
        script.chmod(0o755)
    # `ninja` built the operators of this torch and DeepSpeed: another version would build them again.
    search = os.pathsep.join([str(python.parent), sysconfig.get_path("scripts"), os.environ["PATH"]])
    return command_line.inherited() | _GIT | {"PATH": search, "COLUMNS": "160", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.mark.parametrize("name", _PAGES)
def test_the_commands_of_a_transcript_print_the_documented_lines(
    name: str, environment: dict[str, str], tmp_path: Path
) -> None:
    page = _FOLDER / f"{name}.md"
    root = tmp_path / "mine"
    shutil.copytree(ROOT / "examples" / _PAGES[name], root, ignore=shutil.ignore_patterns("README.md", "m5ws.toml"))
    shutil.copy(Path(__file__).parent / "scripts" / "kill_at_step.py", root)
    (root.parent / "mark").touch()
    if blocks := re.findall(r"^```json\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        (root / "ds.json").write_text("".join(blocks))
    for command in transcripts.read(page):
        transcripts.check(command, root, environment)
    assert re.search("reproduced|sampled", (root / "report.html").read_text())
