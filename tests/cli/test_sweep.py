"""`m5ws sweep` on the command line: plans, errors, the supervisor of the runs, and whole sweeps."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from m5ws.attempts import sweeps
from m5ws.attempts.sweeps import SweepRun
from m5ws.cli import sweep_runs as command
from m5ws.launch import gpus
from m5ws.launch.local import LocalLauncher
from m5ws.records.launch import LaunchRequest
from m5ws.records.run import Axis, LaunchSpec, Run, Sweep
from m5ws.repository import removals
from m5ws.repository.repository import Repository
from tests.cli.conftest import M5, Made
from tests.support.records import mlflow_runs as written
from tests.support.records import planted
from tests.support.waiting import wait_for

_LIMIT_S = 120.0


# --- plans and errors -----------------------------------------------------------------------------------------------


def test_a_dry_run_lists_the_runs_and_starts_none(m5: M5, made: Made, place: Path) -> None:
    words = (
        "sweep",
        "lr=1e-4,3e-4",
        "seed=0:2",
        "--snapshot",
        made.snapshot,
        "--name",
        "rates",
        "--dry-run",
        "--env",
        "warn",
    )
    done = m5(*words, "--", "train.py")
    assert done.status == 0, done.err
    assert [line.split()[-2:] for line in done.out.splitlines()[2:]] == [
        ["lr=1e-4", "seed=0"],
        ["lr=1e-4", "seed=1"],
        ["lr=3e-4", "seed=0"],
        ["lr=3e-4", "seed=1"],
    ]
    document = m5(*words, "--json", "--", "train.py").document
    assert [run["values"] for run in document["runs"]][1] == {"lr": "1e-4", "seed": "1"}
    assert {run["id"] for run in m5("ls", "--json").document["runs"]} == {made.run, made.replay}
    assert not (place / ".m5ws" / "sweeps").exists()


_SBATCH = """#!/bin/sh
test "$1" = --test-only && exit 0
echo x >> "$0.calls"
test $(wc -l < "$0.calls") -lt 3 && echo 7 && exit 0
echo "slurm is full" >&2
exit 1
"""
"""A Slurm that takes two jobs."""


def test_a_sweep_that_a_cluster_refuses_in_the_middle_prints_its_id_and_the_number_of_its_jobs(
    m5: M5, made: Made, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(_SBATCH)
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    with (place / "m5ws.toml").open("a") as settings:
        settings.write(f"[clusters.big]\nengine = 'slurm'\nscratch = '{tmp_path}'\nshared = ['{tmp_path}']\n")
    done = m5("sweep", "lr=1,2,3,4", "--snapshot", made.snapshot, "--on", "big", "--", "train.py")
    assert done.status != 0 and "slurm is full" in done.err
    (sweep,) = re.findall("2 of 4 jobs exist; `m5ws show ([0-9a-f]{12})` shows their runs", done.err)
    assert len(m5("show", sweep, "--json").document["runs"]) == 4


# --- views ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def swept(home: Repository, made: Made) -> Sweep:
    """A sweep of three runs: the first finished, the second failed, and the third has not begun."""
    grid = Sweep(id="5eeb00000000", snapshot=made.snapshot, axes=(Axis(key="lr", values=("1", "2", "3")),))
    base = Run(id="0" * 12, snapshot=made.snapshot, spec=LaunchSpec(command=("train.py",)))
    for row, outcome in zip(sweeps.list_planned(grid), ("finished", "failed"), strict=False):
        run = sweeps.derive(home, grid, base, row)
        planted.run(home, run.id, run.snapshot, spec=run.spec, sweep=run.sweep, name=run.name, created_s=3000.0)
        planted.begin(home, run.id)
        written.end(home, run, outcome=outcome)
    return grid


def test_show_ls_and_compare_present_the_runs_of_a_sweep(m5: M5, swept: Sweep, made: Made) -> None:
    first, second, third = (run.id for run in sweeps.list_planned(swept))
    shown = m5("show", swept.id[:6])
    assert shown.status == 0 and [line.split()[:2] for line in shown.out.splitlines()[-3:]] == [
        [first, "finished"],
        [second, "failed"],
        [third, "not"],
    ]
    assert [run["state"] for run in m5("show", "--json", swept.id).document["runs"]][1:] == ["failed", "not started"]
    assert f"sweep     {swept.id}" in m5("show", first).out
    rows = [row for row in m5("ls", "--runs", "--json").document["runs"] if row["sweep"]]
    assert {(row["id"], row["sweep"]) for row in rows} == {(first, swept.id), (second, swept.id)}
    (line,) = [line for line in m5("ls", "--runs").out.splitlines() if line.startswith(first)]
    assert f"lr=1, sweep {swept.id}" in line and line.count("lr=1") == 1
    assert [run["id"] for run in m5("compare", swept.id, made.run, "--json").document["runs"]] == [
        first,
        second,
        made.run,
    ]


def test_a_sweep_is_removed_with_all_its_runs(m5: M5, swept: Sweep, home: Repository, made: Made) -> None:
    first, second, _ = (run.id for run in sweeps.list_planned(swept))
    planted.run(home, "f" * 12, made.snapshot, reproduces=first)
    refused = m5("rm", swept.id)
    assert refused.status == 2 and "f" * 12 in refused.err and removals.removed_runs(home) == frozenset()
    assert [one["run"] for one in m5("rm", swept.id, "f" * 12, "--json").document["removed"]] == [
        first,
        second,
        "f" * 12,
    ]
    assert m5("rm", swept.id).status == 2
    assert {run["state"] for run in m5("show", "--json", swept.id).document["runs"]} == {"removed", "not started"}


def test_a_resume_of_a_sweep_plans_only_unfinished_runs(m5: M5, swept: Sweep, made: Made) -> None:
    _, second, third = (run.id for run in sweeps.list_planned(swept))
    document = m5("resume", swept.id, "--parallel", "2", "--dry-run", "--json").document
    assert [(run["id"], run["state"]) for run in document["runs"]] == [(second, "failed"), (third, "not started")]
    for option in (("--at", "1"), ("--from-scratch",), ("--env", "rebuild")):
        assert m5("resume", swept.id, *option).status == 2
    assert m5("resume", made.run, "--parallel", "2").status == 2


# --- the supervisor -------------------------------------------------------------------------------------------------


def _planned(count: int) -> list[SweepRun]:
    return [SweepRun(id=f"{n:012d}", name=f"n={n}", position=n, values={"n": str(n)}) for n in range(count)]


def _supervisor(folder: Path, script: str, parallel: int) -> command.Supervisor:
    """Return the supervisor of processes that run a shell script, with the number of the run as its argument."""

    def request(run: SweepRun) -> LaunchRequest:
        argv = ("sh", "-c", script, "sh", str(run.position))
        return LaunchRequest(argv=argv, cwd=str(folder), environment={}, log=str(folder / f"{run.id}.log"))

    shares = gpus.shares([f"gpu{number}" for number in range(2 * parallel)], parallel, nproc=1)
    return command.Supervisor(LocalLauncher(os.environ), request, shares)


def test_a_failed_run_stops_no_other_run_and_output_lines_name_their_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Each has a share of GPUs that no other one has at the time: else `mkdir` would fail.
    script = 'mkdir $CUDA_VISIBLE_DEVICES || exit 9; echo "at $1"; rmdir $CUDA_VISIBLE_DEVICES; [ $1 != 1 ]'
    results = _supervisor(tmp_path, script, parallel=2).run(_planned(5))
    assert [result.outcome for result in results] == ["finished", "failed", "finished", "finished", "finished"]
    shown = capsys.readouterr().err.splitlines()
    assert {f"n={n}: at {n}" for n in range(5)} <= set(shown)


@pytest.mark.parametrize(
    ("chosen", "listed", "expected"),
    [
        ("3,1, 0", 0, ["3", "1", "0"]),
        ("GPU-8932f937,-1,2", 0, ["GPU-8932f937"]),
        ("", 8, []),
        (None, 3, ["0", "1", "2"]),
        (None, None, []),
    ],
)
def test_visible_gpus_are_read_from_the_variable_or_from_nvidia_smi(
    tmp_path: Path, chosen: str | None, listed: int | None, expected: list[str]
) -> None:
    lines = "".join(f"GPU {number}: NVIDIA H100 (UUID: GPU-{number})\\n" for number in range(listed or 0))
    if listed is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{lines}'\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    environment = {"PATH": str(tmp_path)} | ({} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen})
    assert gpus.visible(environment) == expected


@pytest.mark.parametrize("count", range(9))
@pytest.mark.parametrize("parallel", [1, 2, 3])
@pytest.mark.parametrize("nproc", [1, 2])
def test_gpu_shares_are_equal_and_disjoint_or_absent(count: int, parallel: int, nproc: int) -> None:
    every = [str(number) for number in range(count)]
    parts = [share.get("CUDA_VISIBLE_DEVICES") for share in gpus.shares(every, parallel, nproc)]
    assert len(parts) == parallel
    if parallel == 1 or count < parallel * nproc:
        assert parts == [None] * parallel
        return
    named = [(part or "").split(",") for part in parts]
    assert len({len(part) for part in named}) == 1 and len(named[0]) >= nproc
    assert len({name for part in named for name in part}) == sum(map(len, named))


@pytest.mark.parametrize("presses", [1, 2])
def test_an_interrupt_stops_live_runs_and_starts_no_more_runs(tmp_path: Path, presses: int) -> None:
    begun = [tmp_path / f"begun-{n}" for n in range(2)]
    script = f"""
    n=0; trap 'n=$((n+1)); touch asked-$1-$n; [ $n = {presses} ] && exit 130' TERM
    touch begun-$1; while :; do sleep 0.05; done
    """

    def press() -> None:
        wait_for(lambda: all(path.exists() for path in begun))
        for press in range(1, presses + 1):
            asked = [tmp_path / f"asked-{n}-{press}" for n in range(2)]
            os.kill(os.getpid(), signal.SIGINT)
            wait_for(lambda paths=asked: all(path.exists() for path in paths))  # type: ignore[misc]

    thread = threading.Thread(target=press)
    thread.start()
    results = _supervisor(tmp_path, script, parallel=2).run(_planned(3))
    thread.join()
    assert [(result.outcome, result.exit_code) for result in results] == [
        ("interrupted", 130),
        ("interrupted", 130),
        ("not started", None),
    ]


# --- whole sweeps ---------------------------------------------------------------------------------------------------

_SCRIPT = """
import pathlib, sys, time
lr, mark = open("config.yaml").readline().split()[1], pathlib.Path(sys.argv[1])
pathlib.Path("out").mkdir(exist_ok=True)
pathlib.Path("out/lr.txt").write_text(lr)
if not mark.exists():
    if lr == "1":
        raise SystemExit("bad rate")
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_was_stopped_is_resumed_as_a_whole(
    home: Repository, place: Path, tmp_path: Path, number: int
) -> None:
    (place / "m5ws.toml").write_text(
        "[run]\noutputs = ['out']\ntrainer = 'python'\n[mlflow]\nenabled = false\n[store]\nurl = '.m5ws/store'\n"
    )
    (place / "train.py").write_text(_SCRIPT)
    mark = tmp_path / "mark"
    words = [sys.executable, "-m", "m5ws", "-C", str(place)]
    begin = [*words, "sweep", "lr=1,2,3", "--", "train.py", str(mark)]
    with subprocess.Popen(begin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        sweep = process.stdout.readline().strip()
        seen = []
        for line in process.stderr:
            seen.append(line)
            if "lr=2: ready" in line:
                break
        os.kill(process.pid, number)
        seen += process.stderr.readlines()
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), "".join(seen)
    states = _states(words, sweep)
    wait_for(lambda: _states(words, sweep)["lr=2"] == "interrupted")
    assert (states["lr=1"], states["lr=3"]) == ("failed", "not started")

    mark.touch()
    resume = [*words, "resume", sweep, "--parallel", "2", "--json"]
    done = subprocess.run(resume, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [(run["name"], run["outcome"]) for run in document["runs"]] == [
        (f"lr={value}", "finished") for value in (1, 2, 3)
    ]
    assert set(_states(words, sweep).values()) == {"finished"}
    again = subprocess.run(resume, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert again.returncode == 2 and "finished" in again.stderr
    fetched = tmp_path / "fetched"
    subprocess.run([*words, "outputs", document["runs"][2]["run"], str(fetched)], check=True, capture_output=True)
    assert (fetched / "out" / "lr.txt").read_text() == "3"


def _states(words: list[str], sweep: str) -> dict[str, str]:
    done = subprocess.run([*words, "show", sweep, "--json"], capture_output=True, text=True, check=True)
    runs: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
    return {run["name"]: run["state"] for run in runs}
