"""Cost of `m5ws run` for a training loop: the same steps under bare torchrun and under m5ws, turn by turn.

    python benchmarks/overhead.py [--rounds 5] [--steps 200] [--nproc 2] [--only ROW …] [--json FILE]

Per step, over the second half of the steps: the time between the end of one step's body and the start of the next,
where m5ws does its work, and the medians of whole steps. The mean of that time includes the fingerprints of the state.
Start-up: from the command to the start of the first step's body. CPU: of the command and its children, from start to
end. CPU behind: of the follower of MLflow, from its start to its end. Of rank 0 in the second half: the CPU time of a
step, and how often in a step another process took its processor. Rows between locate the difference: torchrun with
m5ws's determinism settings, and m5ws without MLflow. The last two rows differ by supervision: none, and learnt limits,
restarts and rules for the loss. The only checkpoint is at the end. All rows use one thread a rank, the default of
torchrun for two ranks and more.
"""

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
SCRIPT = Path(__file__).parent / "scripts" / "overhead_step.py"
_SETTINGS = '[config]\nfiles = []\n\n[run]\nnproc = {}\ntrainer = "torchrun"\n'
_WORKSPACES = {
    "m5ws run, without MLflow": "\n[mlflow]\nenabled = false\n",
    "m5ws run": "",
    "m5ws run, not supervised": "stuck = false\n",
    "m5ws run, supervised": "stuck = {floor_s = 60}\nrestart = {max = 3}\nloss = {jump = 10, flat = 10}\n",
}
"""The rows with m5ws, and the further lines of their m5ws.toml."""


def measure(command: list[str], out: Path, cwd: Path) -> dict[str, float]:
    """Run once; return start-up and CPU time in s, medians of gap and step and the mean gap in ms."""
    began, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    wait_for_orphans()
    last = resource.getrusage(resource.RUSAGE_CHILDREN)
    times, used = json.loads(out.read_text()).values()
    steady, (first_s, first), (last_s, most) = times[len(times) // 2 :], used[len(times) // 2], used[-1]
    counted = len(times) - len(times) // 2 - 1
    gaps = [1e3 * (after[0] - before[1]) for before, after in pairwise(steady)]
    whole = [1e3 * (after[0] - before[0]) for before, after in pairwise(steady)]
    return {
        "startup_s": times[0][0] - began,
        "gap_ms": statistics.median(gaps),
        "mean_gap_ms": statistics.mean(gaps),
        "step_ms": statistics.median(whole),
        "cpu_s": cpu_s,
        "behind_s": last.ru_utime + last.ru_stime - after.ru_utime - after.ru_stime,
        "rank_ms": 1e3 * (last_s - first_s) / counted,
        "taken": (most - first) / counted,
    }


def wait_for_orphans() -> None:
    """Wait for processes that outlived their command. This process is their parent now (`main`)."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


def commands(root: Path, out: Path, steps: int, nproc: int) -> dict[str, list[str]]:
    """Return the commands to compare, by name; each has a folder of its own."""
    script = SCRIPT.read_text()
    folders = {name: root / f"{number}" for number, name in enumerate(_WORKSPACES)}
    for name, folder in folders.items():
        folder.mkdir()
        (folder / "m5ws.toml").write_text(_SETTINGS.format(nproc) + _WORKSPACES[name])
        (folder / "step.py").write_text(script)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc)]
    m5ws = [sys.executable, "-m", "m5ws", "-C"]
    arguments = ["step.py", str(out), str(steps)]
    bare = [*torchrun, str(folders["m5ws run"] / "step.py"), *arguments[1:]]
    own = {
        name: [*m5ws, str(folder), "run", "--no-progress", "--", *arguments, "session"]
        for name, folder in folders.items()
    }
    return {"torchrun": [*bare, "bare"], "torchrun, deterministic": [*bare, "deterministic"]} | own


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[], help="rows to run, besides torchrun")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        out = root / "times.json"
        rows = commands(root, out, arguments.steps, arguments.nproc)
        rows = {name: rows[name] for name in rows if not arguments.only or name in ("torchrun", *arguments.only)}
        for command in rows.values():
            measure(command, out, root)
        rounds = [
            {name: measure(command, out, root) for name, command in rows.items()} for _ in range(arguments.rounds)
        ]
    result = {
        name: {key: statistics.median(one[name][key] for one in rounds) for key in rounds[0][name]} for name in rows
    }
    bare = result["torchrun"]
    print(
        "| | start-up s | between steps ms | the same, mean | whole step ms | against torchrun | CPU s | CPU behind s "
        "| CPU of rank 0, ms a step | taken, a step |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for name, row in result.items():
        more = statistics.median(one[name]["step_ms"] / one["torchrun"]["step_ms"] for one in rounds)
        gaps = f"{row['gap_ms']:.3f} | {row['mean_gap_ms']:.3f}"
        numbers = f"{row['startup_s']:.2f} | {gaps} | {row['step_ms']:.1f} | {100 * more - 100:+.1f} %"
        more_cpu = f"{row['cpu_s']:.1f} | {row['behind_s']:.1f} | {row['rank_ms']:.1f} | {row['taken']:.1f}"
        print(f"| {name} | {numbers} | {more_cpu} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))
    if arguments.only:
        return
    added = result["m5ws run"]["gap_ms"] - bare["gap_ms"]
    mean_added = result["m5ws run"]["mean_gap_ms"] - bare["mean_gap_ms"]
    share, mean_share = (100 * value / bare["step_ms"] for value in (added, mean_added))
    print(f"\nbetween steps, m5ws adds {added:.3f} ms: {share:.2f} % of a step of {bare['step_ms']:.0f} ms")
    print(f"in the mean, with the fingerprints, {mean_added:.3f} ms: {mean_share:.2f} %")
    plain, supervised = (result[f"m5ws run, {name}"] for name in ("not supervised", "supervised"))
    more = {key: supervised[key] - plain[key] for key in ("gap_ms", "mean_gap_ms", "cpu_s")}
    print(
        f"supervision adds {more['gap_ms']:.3f} ms between steps ({100 * more['gap_ms'] / bare['step_ms']:.2f} %), "
        f"{more['mean_gap_ms']:.3f} ms in the mean, and {more['cpu_s']:.1f} CPU s a run"
    )


if __name__ == "__main__":
    main()
