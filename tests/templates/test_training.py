"""Templates train: under torchrun alone, and under m5ws, where their runs are reproduced."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.ranks.forks import ForkParents
from tests.support.workspace import command_line

pytestmark = pytest.mark.long

Make = Callable[[str], Path]


def call(root: Path, *argv: str, expect: int = 0, variables: Mapping[str, str] | None = None) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | dict(variables or {})
    done = subprocess.run(argv, cwd=root, env=environment, capture_output=True, text=True, timeout=800, check=False)
    if done.returncode != expect:
        logs = "".join(f"\n--- {log}\n{log.read_text(errors='replace')[-3000:]}" for log in root.rglob("logs/*.log"))
        pytest.fail(f"{argv} → {done.returncode}\n{done.stdout}\n{done.stderr}{logs}")
    return done.stdout


def m5ws(root: Path, *arguments: str) -> str:
    return call(root, sys.executable, "-m", "m5ws", *arguments)


def m5ws_here(root: Path, *arguments: str) -> str:
    """Like `m5ws`, in this process."""
    done = command_line.call("-C", str(root), *arguments, environment={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def torchrun(root: Path, variables: Mapping[str, str] | None = None) -> str:
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    return call(root, sys.executable, *command, variables=variables)


def compiled() -> dict[str, str]:
    """Return the variable that names the folder of compiled operators: DeepSpeed compiles into another for minutes."""
    printed = call(Path(), sys.executable, "-m", "m5ws.training.backends.deepspeed.cpu_adam")
    operator = Path(printed.splitlines()[-1])
    return {"TORCH_EXTENSIONS_DIR": str(operator.parents[1])}


@pytest.mark.parametrize("template", ["gpt-fsdp", pytest.param("gpt-deepspeed", marks=pytest.mark.soak)])
def test_a_template_runs_without_m5ws(workspace: Make, text: Path, template: str) -> None:
    root = workspace(template)
    call(root, sys.executable, "prepare.py", str(text))
    before = {path.name for path in root.iterdir()}
    variables = compiled() if template == "gpt-deepspeed" else None
    assert "step 5/6  loss" in torchrun(root, variables)
    assert {path.name for path in root.iterdir()} - before <= {"__pycache__"}


def check_it_is_reproduced(root: Path, text: Path, change: str, run_m5ws: Callable[..., str]) -> None:
    call(root, sys.executable, "prepare.py", str(text))
    with (root / "m5ws.toml").open("a") as settings:
        settings.write("enabled = false\n")  # [mlflow] is the last section.
    snapshot = run_m5ws(root, "snapshot").strip()
    run = json.loads(run_m5ws(root, "run", snapshot, "--set", change, "--json"))["run"]["id"]
    verdict = json.loads(run_m5ws(root, "reproduce", run, "--json"))
    assert verdict["outcome"] == "reproduced"
    assert verdict["not_compared"] == []


@pytest.mark.soak
@pytest.mark.parametrize("template", ["gpt-fsdp", "gpt-deepspeed"])
def test_a_template_uses_nothing_that_is_not_pinned(workspace: Make, text: Path, template: str) -> None:
    root = workspace(template)
    call(root, sys.executable, "prepare.py", str(text))
    settings = root / "m5ws.toml"
    settings.write_text(settings.read_text().replace("[run]\n", '[run]\ninputs = "pinned"\n'))
    m5ws(root, "run", "--no-progress")
    assert list(root.glob(".m5ws/runs/*/0001/context")) and not list(root.glob(".m5ws/**/refused"))


@pytest.mark.soak
@pytest.mark.parametrize(("template", "change"), [("gpt-fsdp", "dtype=bfloat16"), ("gpt-deepspeed", "zero_stage=2")])
def test_a_template_is_reproduced(workspace: Make, text: Path, template: str, change: str) -> None:
    check_it_is_reproduced(workspace(template), text, change, m5ws)


# tests/templates/test_demo.py reproduces gpt-fsdp.
@pytest.mark.soak
def test_another_zero_stage_is_reproduced(workspace: Make, text: Path, fork_parents: ForkParents) -> None:
    with command_line.forked_ranks(fork_parents):
        check_it_is_reproduced(workspace("gpt-deepspeed"), text, "zero_stage=3", m5ws_here)
