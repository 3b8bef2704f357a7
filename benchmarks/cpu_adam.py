"""Time of updates by DeepSpeed's CPUAdam with one thread and with each number of threads up to the number of cores.

    python benchmarks/cpu_adam.py [--elements 50000000] [--rounds 9] [--json FILE]

The numbers of threads take turns in one process. The ratio is the median over rounds of each turn against one thread
in the same round. Bits of parameters and moments are compared after the last round.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from m5ws.training.backends.deepspeed.cpu_adam import ensure_cpu_adam

BETAS = (0.9, 0.95)


def _state(elements: int) -> list[torch.Tensor]:
    """Return parameters, gradients and both moments."""
    generator = torch.Generator().manual_seed(0)
    return [*(torch.randn(elements, generator=generator) for _ in range(2)), *torch.zeros(2, elements)]


def measure(elements: int, rounds: int) -> dict[int, list[float]]:
    """Return the seconds of an update in each round, by the number of threads. Raises RuntimeError for other bits."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    counts = range(1, len(os.sched_getaffinity(0)) + 1)
    optimizer: Any = DeepSpeedCPUAdam([torch.nn.Parameter(torch.zeros(1))])
    states = {threads: _state(elements) for threads in counts}
    times: dict[int, list[float]] = {threads: [] for threads in counts}
    for step in range(1, rounds + 2):
        for threads, state in states.items():
            torch.set_num_threads(threads)
            began_s = time.perf_counter()
            optimizer.ds_opt_adam.adam_update(optimizer.opt_id, step, 1e-3, *BETAS, 1e-8, 0.1, True, *state)
            times[threads].append(time.perf_counter() - began_s)
    if not all(
        torch.equal(one, other) for state in states.values() for one, other in zip(states[1], state, strict=True)
    ):
        raise RuntimeError("the number of threads changed bits")
    return {threads: each[1:] for threads, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--elements", type=int, default=50_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    ensure_cpu_adam()
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n")
    times = measure(given.elements, given.rounds)
    print(f"| threads | ms for {given.elements:,} elements | against one thread |\n|---|---:|---:|")
    for threads, each in times.items():
        ratio = statistics.median(one / other for one, other in zip(each, times[1], strict=True))
        print(f"| {threads} | {1e3 * statistics.median(each):.0f} | {ratio:.2f} |")
    if given.json is not None:
        given.json.write_text(json.dumps(times, indent=1))


if __name__ == "__main__":
    main()
