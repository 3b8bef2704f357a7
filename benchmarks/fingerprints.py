"""Cost of fingerprints of a training's state against memory bandwidth, and of each level of recording for a step.

    python benchmarks/fingerprints.py [--device cpu|cuda] [--dtype float32|bfloat16] [--gib 1] [--rounds 7]
                                      [--threads 1] [--step-ms 100]

The state is the state of a GPT with AdamW: weights and two moments, large matrices and small vectors. Rows read all of
it, turn by turn: a sum, a copy, and the fingerprints, on a GPU by Triton and in main memory. Each is in bytes of state
a second, and in CPU seconds, which do not depend on the load of the machine. Then the ledger: the time to append one
step's event to the spool. The last table adds both for a step of `--step-ms`, with fingerprints at checkpoints alone,
every N steps, and every step.
"""

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from m5ws.records.ledger import Step
from m5ws.repository.ledger.spool import SpoolWriter, genesis
from m5ws.training.backends.base import Piece
from m5ws.training.fingerprint import batches, fingerprint, run_sums, tensor_sums

_EVENTS = 2000
_EVERY = (1, 10, 100, 1000)


def state(size_bytes: int, device: str, dtype: torch.dtype) -> list[Piece]:
    """Return about `size_bytes` of a GPT's tensors: of each layer matrices of width 1024, and vectors."""
    width, pieces, held, layer = 1024, [], 0, 0
    shapes = {"qkv": (3 * width, width), "out": (width, width), "up": (4 * width, width), "down": (width, 4 * width)}
    vectors = {f"norm{number}.{kind}": (width,) for number in (1, 2) for kind in ("weight", "bias")}
    while held < size_bytes:
        for name, shape in (shapes | vectors).items():
            for kind in ("weight", "exp_avg", "exp_avg_sq"):
                piece = Piece(f"{layer}.{name}.{kind}", torch.randn(shape, device=device, dtype=dtype))
                pieces.append(piece)
                held += piece.tensor.nbytes
        layer += 1
    return pieces


def took(work: Callable[[], object], device: str) -> tuple[float, float]:
    """Return the seconds and CPU seconds of `work`, including its work on the device."""
    settle(device)
    began, before = time.perf_counter(), time.process_time()
    work()
    settle(device)
    return time.perf_counter() - began, time.process_time() - before


def settle(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def append() -> None:
    """Append the events of many steps to a spool."""
    quantities = {name: (0.1).hex() for name in ("loss", "grad_norm", "lr")}
    with tempfile.TemporaryDirectory() as folder:
        spool = SpoolWriter(Path(folder) / "0.spool", genesis("0" * 12, 1, "0"))
        for number in range(1, _EVENTS + 1):
            spool.append(Step(time_s=time.time(), step=number, quantities=quantities, batch="0" * 64, tokens=1))


def measure(pieces: list[Piece], device: str, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds and CPU seconds of each round, by row; rows take turns. The first round is a warm-up."""
    tensors = [piece.tensor for piece in pieces]
    copies = [torch.empty_like(tensor) for tensor in tensors]
    rows: dict[str, Callable[[], object]] = {
        "read: sum": lambda: [tensor.sum() for tensor in tensors],
        "copy": lambda: [copy.copy_(tensor) for copy, tensor in zip(copies, tensors, strict=True)],
        "fingerprints": lambda: fingerprint.fingerprints(pieces, None).values,
    }
    if device != "cpu":
        parts, host = [(piece.tensor, piece.place) for piece in pieces], torch.device("cpu")
        rows["fingerprints in main memory, without Triton"] = lambda: batches.sums(parts, run_sums.add_up, host)
    rows["ledger"] = append
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
    for turn in range(rounds + 1):
        for name, work in rows.items():
            one = took(work, device)
            if turn:
                found[name].append(one)
    return found


def show(found: dict[str, list[tuple[float, float]]], size_bytes: int, step_ms: float) -> None:
    """Print both tables."""
    walls = {name: [one[0] for one in times] for name, times in found.items()}
    cpus = {name: statistics.median(one[1] for one in times) for name, times in found.items()}
    print("| | s | spread | GB/s of state | of the sum's | CPU s | of the sum's |\n|---|---:|---:|---:|---:|---:|---:|")
    for name in (row for row in found if row != "ledger"):
        middle = statistics.median(walls[name])
        ratio = statistics.median(a / b for a, b in zip(walls["read: sum"], walls[name], strict=True))
        spread = f"{min(walls[name]):.3f}–{max(walls[name]):.3f}"
        rate = f"{size_bytes / middle / 1e9:.2f} | {100 * ratio:.0f} %"
        cpu = f"{cpus[name]:.3f} | {100 * cpus['read: sum'] / cpus[name]:.0f} %"
        print(f"| {name} | {middle:.3f} | {spread} | {rate} | {cpu} |")
    all_ms, ledger_ms = (1e3 * statistics.median(walls[name]) for name in ("fingerprints", "ledger"))
    ledger_ms /= _EVENTS
    share = f"{100 * ledger_ms / step_ms:.3f} % of {step_ms:g} ms"
    print(f"\nledger: {1e3 * ledger_ms:.0f} µs a step ({1e6 * cpus['ledger'] / _EVENTS:.0f} of CPU), {share}\n")
    print(f"| fingerprints of {size_bytes / 2**30:.2f} GiB | ms a step | of {step_ms:g} ms |\n|---|---:|---:|")
    print(f"| at checkpoints alone (0) | {ledger_ms:.3f} | {100 * ledger_ms / step_ms:.2f} % |")
    for every in reversed(_EVERY):
        cost = ledger_ms + all_ms / every
        print(f"| every {f'{every} steps' if every > 1 else 'step'} | {cost:.2f} | {100 * cost / step_ms:.2f} % |")
    left_ms = 0.01 * step_ms - ledger_ms
    if left_ms > 0:
        print(f"\nwithin 1 % of such a step: every {math.ceil(all_ms / left_ms)} steps")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=100.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if not torch.cuda.is_available():
        print("GPU: not measured, because torch finds no CUDA device\n")
        if arguments.device != "cpu":
            return
    elif arguments.device != "cpu" and tensor_sums.load_kernel(torch.device(arguments.device)) is None:
        print("Triton: not measured, because its kernel does not run here\n")
    pieces = state(int(arguments.gib * 2**30), arguments.device, getattr(torch, arguments.dtype))
    size_bytes = sum(piece.tensor.nbytes for piece in pieces)
    load = os.getloadavg()[0]
    found = measure(pieces, arguments.device, arguments.rounds)
    model = torch.cuda.get_device_name() if arguments.device != "cpu" else torch.backends.cpu.get_cpu_capability()
    where = f"{model}, {arguments.threads} threads, torch {torch.__version__}, load before {load:.1f}"
    print(f"{len(pieces)} tensors in {arguments.dtype}, {size_bytes / 2**30:.2f} GiB; {where}\n")
    show(found, size_bytes, arguments.step_ms)
    if arguments.json:
        arguments.json.write_text(json.dumps({"bytes": size_bytes, "load": load, "seconds": found}, indent=1))


if __name__ == "__main__":
    main()
