"""The transcripts in docs/transcripts: each command is run as typed, and prints the lines that the page shows."""

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.services.conftest import Versions
from tests.support.paths import ROOT
from tests.support.workspace import command_line

pytestmark = pytest.mark.services

_FOLDER = ROOT / "docs" / "transcripts"
_PAGES = {"hydra-wandb-src-layout": "hydra", "lightning-ddp": "lightning", "trainer-zero-offload": "hf-trainer"}
"""The example from which each page begins."""
_AUTHOR = {"NAME": "A", "EMAIL": "a@example.org"}
_GIT = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in _AUTHOR.items()}
_STATUS = re.compile(r"\[exit status (\d+)\]")


class Command(msgspec.Struct, frozen=True):
    """A command of a transcript, with lines of its output in their order."""

    text: str
    output: tuple[str, ...]
    status: int


def _read(page: Path) -> list[Command]:
    commands = []
    blocks = re.findall(r"(?:^    .*\n)+", page.read_text(), re.MULTILINE)
    for block in blocks:
        assert block.startswith("    $ "), f"{page.name}: a block does not begin with a command: {block}"
        for part in re.split(r"^    \$ ", block, flags=re.MULTILINE)[1:]:
            text, *output = (line.strip() for line in part.splitlines())
            status = _STATUS.fullmatch(output[-1]) if output else None
            commands.append(Command(text, tuple(output[:-1] if status else output), int(status[1]) if status else 0))
    return commands


def _check(command: Command, folder: Path, environment: dict[str, str]) -> None:
    """Run a command, and compare its exit status and output. `…` matches any text of a line."""
    done = subprocess.run(
        ["bash", "-c", command.text],
        cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=550,
    )  # fmt: skip
    assert done.returncode == command.status, f"$ {command.text}\n{done.stdout[-6000:]}"
    lines = iter(done.stdout.splitlines())
    for expected in command.output:
        pattern = re.compile(".*".join(map(re.escape, expected.split("…"))))
        assert any(pattern.fullmatch(line.strip()) for line in lines), (
            f"$ {command.text}\nno line (in this order): {expected}\n{done.stdout[-6000:]}"
        )


@pytest.fixture(scope="module")
def environment(interpreter: Callable[[Versions], Path]) -> dict[str, str]:
    """Variables of a shell in which `python`, `pip` and `m5ws` are those of an environment with frameworks."""
    python = interpreter("transcripts")
    for name, entry in (
        ("m5ws", "m5ws.__main__ import program"),
        ("pip", "pip._internal.cli.main import main as program"),
    ):
        script = python.with_name(name)
        script.write_text(f"#!{python}\nimport sys\nfrom {entry}\nsys.exit(program())\n")
        script.chmod(0o755)
    # `ninja` is the one that built the operators of this torch and DeepSpeed: another version would build them again.
    search = os.pathsep.join([str(python.parent), sysconfig.get_path("scripts"), os.environ["PATH"]])
    return command_line.inherited() | _GIT | {"PATH": search, "COLUMNS": "160", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] * ("hydra" not in name)) for name in _PAGES]
)
def test_a_transcript_is_repeated(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    page = _FOLDER / f"{name}.md"
    root = tmp_path / "mine"
    shutil.copytree(ROOT / "examples" / _PAGES[name], root, ignore=shutil.ignore_patterns("README.md", "m5ws.toml"))
    shutil.copy(Path(__file__).parent / "scripts" / "kill_at_step.py", root)
    (root.parent / "mark").touch()
    if blocks := re.findall(r"^```json\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        (root / "ds.json").write_text("".join(blocks))
    for command in _read(page):
        _check(command, root, environment)
    assert re.search("reproduced|sampled", (root / "report.html").read_text())
