"""What `m5ws run` costs a training loop: the same steps under bare torchrun and under m5ws, turn by turn.

    python benchmarks/overhead.py [--rounds 5] [--steps 60] [--json FILE]

Per step, over the second half of the steps: the time between the end of one step's body and the start of the next,
where m5ws does its work, and the medians of whole steps. Start-up: from the command to the start of the first step's
body. The only checkpoint is at the end.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

SCRIPT = Path(__file__).parent / "scripts" / "overhead_step.py"
_SETTINGS = "[config]\nfiles = []\n\n[run]\nnproc = 2\n"


def measure(command: list[str], out: Path, cwd: Path) -> dict[str, float]:
    """Run once and return start-up in seconds, and the medians of gap and step in milliseconds."""
    began = time.time()
    subprocess.run(command, cwd=cwd, check=True, capture_output=True)
    times = json.loads(out.read_text())
    steady = times[len(times) // 2 :]
    gaps = [1e3 * (after[0] - before[1]) for before, after in pairwise(steady)]
    whole = [1e3 * (after[0] - before[0]) for before, after in pairwise(steady)]
    return {"startup_s": times[0][0] - began, "gap_ms": statistics.median(gaps), "step_ms": statistics.median(whole)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "m5ws.toml").write_text(_SETTINGS)
        (root / "step.py").write_text(SCRIPT.read_text())
        out, steps = root / "times.json", str(arguments.steps)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        m5ws = [sys.executable, "-m", "m5ws", "run", "--no-progress"]
        commands = {
            "torchrun": [*torchrun, "step.py", str(out), steps, "bare"],
            "m5ws run": [*m5ws, "--", "step.py", str(out), steps, "session"],
        }
        for command in commands.values():
            measure(command, out, root)
        rounds = [
            {name: measure(command, out, root) for name, command in commands.items()} for _ in range(arguments.rounds)
        ]
    result = {
        name: {key: statistics.median(one[name][key] for one in rounds) for key in rounds[0][name]} for name in commands
    }
    ours, bare = result["m5ws run"], result["torchrun"]
    print("| | start-up s | between steps ms | whole step ms |\n|---|---|---|---|")
    for name, row in result.items():
        print(f"| {name} | {row['startup_s']:.2f} | {row['gap_ms']:.3f} | {row['step_ms']:.1f} |")
    added = ours["gap_ms"] - bare["gap_ms"]
    share = 100 * added / bare["step_ms"]
    print(f"\nbetween steps, m5ws adds {added:.3f} ms: {share:.2f} % of a step of {bare['step_ms']:.0f} ms")
    print(f"start-up: {ours['startup_s'] - bare['startup_s']:+.2f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
