"""Cost of starting and ending a run: a short script, bare, with MLflow's own logging, and under m5ws, turn by turn.

    python benchmarks/start.py [--rounds 5] [--only ROW …] [--json FILE]

Each row is a whole process. Wall: until its command returns. Before: from the command to the first line of the script.
After: from the last line of the script to the return of the command. Behind: from there until no process of the command
is left, which includes a delivery to MLflow. CPU: of all these processes. Each row has a workspace of its own, in which
it was run before, but for the first run of a workspace. All use one thread.
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
from pathlib import Path

SCRIPT = Path(__file__).parent / "scripts" / "start_step.py"
SETTINGS = "[config]\nfiles = []\n"
_PR_SET_CHILD_SUBREAPER = 36
_M5WS = [sys.executable, "-m", "m5ws"]
_WITHOUT, _FIRST, _REPLAY = "m5ws run, without MLflow", "m5ws run, first of a workspace", "m5ws reproduce"
_LOGGED = {"python": "plain", "python, mlflow.log_metric": "metric", "python, mlflow.autolog": "autolog"}
"""Rows without m5ws, and the argument of their script."""
ROWS = (*_LOGGED, _WITHOUT, "m5ws run", _FIRST, _REPLAY)


def make_workspace(folder: Path, name: str, times: Path) -> list[str]:
    """Write a workspace with the script, and return the command of a row. The script writes `times`."""
    (folder / ".m5ws").mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT.read_text())
    (folder / "m5ws.toml").write_text(SETTINGS + "[mlflow]\nenabled = false\n" * (name == _WITHOUT))
    if name in _LOGGED:
        return [sys.executable, "train.py", str(times), _LOGGED[name]]
    run = [*_M5WS, "run", "--no-progress", "train.py", str(times)]
    if name != _REPLAY:
        return run
    done = subprocess.run(run, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return [*_M5WS, "reproduce", "--no-progress", done.stdout.strip()]


def measure(words: list[str], folder: Path, times: Path) -> dict[str, float]:
    """Run a command, wait for all of its processes, and return its times in seconds."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/.m5ws/mlflow.db"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    subprocess.run(words, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    returned = time.time()
    wait_for_orphans()
    ended, after = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    first, last = json.loads(times.read_text())
    return {
        "wall": returned - began,
        "before": first - began,
        "script": last - first,
        "after": returned - last,
        "behind": ended - returned,
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


def wait_for_orphans() -> None:
    """Wait for processes that outlived their command. This process is their parent now (`main`)."""
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=ROWS, choices=ROWS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in arguments.only}
    with tempfile.TemporaryDirectory() as folder:
        root, times = Path(folder), Path(folder) / "times.json"
        commands = {name: make_workspace(root / name, name, times) for name in rounds if name != _FIRST}
        for name, words in commands.items():
            measure(words, root / name, times)
        for number in range(arguments.rounds):
            for name, rows in rounds.items():
                workspace = root / (name if name != _FIRST else f"first-{number}")
                words = commands[name] if name != _FIRST else make_workspace(workspace, name, times)
                rows.append(measure(words, workspace, times))
    result = {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in rounds.items()
    }
    bare = result[arguments.only[0]]
    columns = ("before", "script", "after", "behind")
    print(f"| | wall s | more | CPU s | more | {' s | '.join(columns)} s |\n|---|{'---:|' * 8}")
    for name, row in result.items():
        cells = [cell for key in ("wall", "cpu") for cell in (f"{row[key]:.2f}", f"{row[key] - bare[key]:+.2f}")]
        print(f"| {name} | {' | '.join([*cells, *(f'{row[key]:.2f}' for key in columns)])} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
