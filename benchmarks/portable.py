"""Cost of determinism level "portable" for a training on a CPU: the templates' GPT under "strict" and under "portable".

    python benchmarks/portable.py [--rounds 5] [--steps 20] [--dtype float32 bfloat16] [--threads 1] [--json FILE]

Each turn is a process of its own, started as a rank is; the levels take turns. A row between the two shows the cost of
the instructions alone, without the replaced square root. Seconds a step are the median of a turn's second half. The
ratio is the median over rounds of each turn against "strict" in the same round. CPU time does not depend on the load of
the machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from m5ws.records import determinism
from m5ws.records.environment import Determinism

SCRIPT = Path(__file__).parent / "scripts" / "portable_step.py"
LEVELS = ("strict", "pinned", "portable")


def turn(level: str, dtype: str, steps: int, threads: int, width: int) -> dict[str, float]:
    """Train in a process of its own, and return its seconds and CPU seconds a step."""
    variables = determinism.environment(
        Determinism(level="strict" if level == "strict" else "portable", threads=threads)
    )
    command = [sys.executable, str(SCRIPT), level, dtype, str(steps), str(threads), str(width)]
    done = subprocess.run(command, env=os.environ | variables, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--width", type=int, nargs="+", default=[128, 768], help="128 is the templates' own")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n")
    print("| model | level | ms a step | against strict | CPU, against strict |\n|---|---|---:|---:|---:|")
    kept = {}
    for dtype in arguments.dtype:
        for width in arguments.width:
            rounds = [
                {level: turn(level, dtype, arguments.steps, arguments.threads, width) for level in LEVELS}
                for _ in range(arguments.rounds)
            ]
            kept[f"{dtype} {width}"] = rounds
            for level in LEVELS:
                step_ms = 1e3 * statistics.median(one[level]["step_s"] for one in rounds)
                wall, cpu = (
                    statistics.median(one[level][key] / one["strict"][key] for one in rounds)
                    for key in ("step_s", "cpu_s")
                )
                print(f"| width {width}, {dtype} | {level} | {step_ms:.1f} | {wall:.2f} | {cpu:.2f} |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
