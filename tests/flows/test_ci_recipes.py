"""The recipes of docs/how-to/check-jobs-in-ci.md: all run the same commands, and the git hook runs them at a push."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.paths import ROOT
from tests.support.workspace.checkouts import commit_all, git, write
from tests.support.workspace.command_line import inherited

_PAGE = (ROOT / "docs" / "how-to" / "check-jobs-in-ci.md").read_text()
_COMMANDS = ["snapshot=$(m5ws snapshot)", 'm5ws preflight "$snapshot"']
_SCRIPT = """\
import torch
import m5ws

m5ws.seed(7)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in m5ws.session(model, optimizer, total_steps=1000).steps():
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def _recipes() -> dict[str, str]:
    """Return the code of each section by its heading."""
    found = re.findall(r"^## (.+?)$.*?^```\w+\n(.*?)^```$", _PAGE, re.MULTILINE | re.DOTALL)
    return dict(found)


def test_all_recipes_run_the_same_commands() -> None:
    recipes = _recipes()
    actions = yaml.safe_load(recipes["GitHub Actions"])["jobs"]["preflight"]["steps"][-1]["run"].splitlines()
    gitlab = yaml.safe_load(recipes["GitLab"])["preflight"]["script"]
    jenkins, hook = (
        [line.strip() for line in recipes[name].splitlines() if line.strip() in _COMMANDS]
        for name in ("Jenkins", "A git hook")
    )
    assert actions == gitlab == jenkins == hook == _COMMANDS


@pytest.mark.parametrize("command", [["train.py"], ["missing.py"]], ids=["equal", "failed"])
def test_a_push_waits_for_the_hook_and_is_refused_if_the_hook_fails(tmp_path: Path, command: list[str]) -> None:
    root, shared = tmp_path / "w", tmp_path / "shared.git"
    settings = f"[mlflow]\nenabled = false\n[run]\ncommand = {command}\n"
    write(root, {"train.py": _SCRIPT, "m5ws.toml": settings, ".gitignore": ".m5ws/\n"})
    commit_all(root)
    git(tmp_path, "init", "-q", "--bare", str(shared))
    hook = root / ".git" / "hooks" / "pre-push"
    hook.write_text(_recipes()["A git hook"])
    hook.chmod(0o755)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    push = ["git", "push", "-q", str(shared), "main"]
    done = subprocess.run(push, cwd=root, env=inherited() | {"PATH": path}, capture_output=True, text=True)
    assert (done.returncode == 0) == (command == ["train.py"]), done.stderr
    assert ("CERTIFIED" in done.stdout) == (done.returncode == 0)
    assert bool(git(shared, "branch")) == (done.returncode == 0)
