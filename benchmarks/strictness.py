"""Price of strictness: tokens a second of the templates' GPT by level of determinism, on a CPU and on a GPU.

    python benchmarks/strictness.py [--rounds 5] [--steps 20] [--dtype float32 bfloat16] [--threads 1] [--json FILE]

Each turn is a process of its own, started as a rank is; the rows take turns. *filled*: "strict", and torch fills the
memory of `torch.empty`. *pinned*: the variables of "portable" without the replaced square root; "portable" and
"pinned" are about CPUs. Seconds a step are the median of a turn's second half. The ratio is the median over rounds of
each turn against "off" in the same round. CPU time does not depend on the load of the machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from m5ws.records import determinism
from m5ws.records.environment import Determinism

SCRIPT = Path(__file__).parent / "scripts" / "strictness_step.py"
BATCH, LENGTH = 4, 128
"""Samples of a step, and tokens of a sample."""
_ROWS = {"cpu": ("off", "warn", "strict", "filled", "pinned", "portable"), "cuda": ("off", "warn", "strict", "filled")}


def determinism_of(row: str, threads: int) -> Determinism:
    """Return the settings of a row."""
    level: Any = {"filled": "strict", "pinned": "portable"}.get(row, row)
    return Determinism(level=level, threads=threads, fill_uninitialized=row == "filled")


def turn(row: str, dtype: str, steps: int, threads: int, width: int, device: str) -> dict[str, float]:
    """Train in a process of its own, and return its seconds and CPU seconds a step."""
    variables = determinism.environment(determinism_of(row, threads))
    command = [sys.executable, str(SCRIPT), row, dtype, str(steps), str(threads), str(width), device]
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
    given = parser.parse_args()
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; devices: {', '.join(devices)}\n")
    print("| device | model | level | tokens/s | time, against off | CPU, against off |\n|---|---|---|---:|---:|---:|")
    kept = {}
    for device, dtype, width in ((d, t, w) for d in devices for t in given.dtype for w in given.width):
        rounds = [
            {row: turn(row, dtype, given.steps, given.threads, width, device) for row in _ROWS[device]}
            for _ in range(given.rounds)
        ]
        kept[f"{device} {dtype} {width}"] = rounds
        for row in _ROWS[device]:
            tokens = BATCH * LENGTH / statistics.median(one[row]["step_s"] for one in rounds)
            wall, cpu = (
                statistics.median(one[row][key] / one["off"][key] for one in rounds) for key in ("step_s", "cpu_s")
            )
            print(f"| {device} | width {width}, {dtype} | {row} | {tokens:,.0f} | {wall:.2f} | {cpu:.2f} |", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
