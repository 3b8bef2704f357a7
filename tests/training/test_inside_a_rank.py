"""A rank without a session differs from a bare interpreter by the list in docs/reference/inside-a-rank.md alone."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from m5ws.launch import launch_request
from tests.support.paths import ROOT
from tests.support.workspace.workspaces import Workspace, make_workspace

_PROBE = Path(__file__).parent / "scripts" / "probe_process.py"
_KINDS = {
    "attribute": "Attributes",
    "finder": "Import finders",
    "signal": "Signal handlers",
    "variable": "Environment variables",
    "file": "Open files",
}
_OF_A_SHELL = {"_", "SHLVL"}
_OF_TORCH = {"torch.manual_seed"}
"""Torch itself replaces it, torch 2.8 not when deterministic algorithms are switched on, and frameworks may before."""


def _listed(kind: str) -> set[str]:
    """Return the names in the first column of the table of a kind."""
    page = (ROOT / "docs" / "reference" / "inside-a-rank.md").read_text(encoding="utf-8")
    section = page.split(f"## {_KINDS[kind]}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def _inherited() -> dict[str, str]:
    added = ("PYTHON", "OMP_", "MKL_", "GLOO_", "NCCL_", "CUBLAS_", "M5WS_", "MLFLOW_")
    return {name: value for name, value in os.environ.items() if not name.startswith(added)}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = make_workspace(tmp_path_factory.mktemp("inside") / "w", "plain.py", trainer="python", nproc=1)
    (made.root / "probe.py").write_text(_PROBE.read_text())
    return made


@pytest.fixture(scope="module")
def processes(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Return the probes of a bare interpreter and of a rank."""
    folder = tmp_path_factory.mktemp("probes")
    ranks = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "nowhere", "SLURM_PROCID": "3", "TORCHELASTIC_RUN_ID": "x"}
    launches = {
        "bare": ([sys.executable, "probe.py"], {}),
        "rank": ([sys.executable, "-m", "m5ws", "run", "--no-progress", "--", "probe.py"], ranks),
    }
    # A shell starts a job in the background with SIGQUIT ignored, and nohup(1) a program with SIGHUP ignored.
    before = [(signal.SIGQUIT, signal.signal(signal.SIGQUIT, signal.SIG_DFL))]
    before.append((signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_IGN)))
    for name, (argv, more) in launches.items():
        environment = _inherited() | more | ({"PYTHONPATH": str(ROOT)} if name == "rank" else {})
        with (folder / f"{name}.log").open("w") as log:
            subprocess.run(
                [*argv, str(folder / name)],
                cwd=workspace.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
            )
    for number, handler in before:
        signal.signal(number, handler)
    return tuple(json.loads((folder / name).read_text()) for name in launches)


@pytest.mark.parametrize("kind", [*_KINDS])
def test_a_rank_differs_from_a_bare_interpreter_only_by_the_listed_changes(
    processes: tuple[Any, Any], kind: str
) -> None:
    bare, rank = (process[kind] for process in processes)
    names = {name for name in bare.keys() | rank.keys() if bare.get(name) != rank.get(name)}
    names -= {"bare.log", *_OF_A_SHELL}
    assert names <= _listed(kind), sorted(names - _listed(kind))


def test_every_listed_change_is_made_in_a_rank(processes: tuple[Any, Any]) -> None:
    """A list that only grows would prove nothing."""
    for kind in ("attribute", "finder", "file"):
        bare, rank = (process[kind] for process in processes)
        listed = _listed(kind) - _OF_TORCH
        assert {name for name in listed if bare.get(name) == rank.get(name)} == set()


def test_no_variable_of_a_rank_is_inherited(processes: tuple[Any, Any]) -> None:
    assert launch_request.of_ranks(processes[1]["variable"]) == ()
