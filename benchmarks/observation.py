"""Cost of the observation of a script without a session: the same training with and without it, turn by turn.

    python benchmarks/observation.py [--rounds 5] [--steps 100] [--layers 12] [--width 256] [--tokens 256] [--json FILE]

Each turn is a process of its own, on one thread, with a GPT of many small modules and AdamW. The first two
steps do not count. The others are added up by their median, in which fingerprints do not show, and by their mean.
`added` is against the turn without observation in the same round. CPU time does not depend on the load of the machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from m5ws.records.base import Digest
from m5ws.records.environment import Determinism
from m5ws.records.launch import Context
from m5ws.records.run import LaunchSpec
from m5ws.records.store import Format
from m5ws.repository.ledger.spool import SpoolWriter, genesis
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from m5ws.training.observation import watch
from m5ws.training.runtime.context import ActiveRank
from m5ws.training.runtime.stop import StopRequest

RUN, NONE = "0" * 12, Digest("0" * 64)


def turn(folder: Path, *, observe: bool, steps: int, layers: int, width: int, tokens: int) -> dict[str, Any]:
    """Train in this process, and return the seconds and CPU seconds of each step, and the bytes of the ledger."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    block = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
    model = torch.nn.Sequential(
        torch.nn.Embedding(1000, width), torch.nn.TransformerEncoder(block, layers, enable_nested_tensor=False),
        torch.nn.Linear(width, 1000),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters())
    loss = torch.nn.CrossEntropyLoss()
    spool = folder / "0.spool"
    if observe:
        watch.start(_rank(folder, spool))
    times = []
    for step in range(steps):
        began, cpu = time.perf_counter(), time.process_time()
        x = torch.randint(1000, (1, tokens), generator=torch.Generator().manual_seed(step))
        loss(model(x).view(-1, 1000), x.view(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append((time.perf_counter() - began, time.process_time() - cpu))
    watch.finish()
    modules, tensors = len(list(model.modules())), len(list(model.parameters()))
    elements = sum(parameter.numel() for parameter in model.parameters())
    ledger = spool.stat().st_size if observe else 0
    return {"times": times, "modules": modules, "tensors": tensors, "elements": elements, "ledger": ledger}


def _rank(folder: Path, spool: Path) -> ActiveRank:
    repo = Repository.create(LocalStore(folder / "store"), Format())
    names = ("work_dir", "spool_dir", "log_dir", "output_dir", "author_dir")
    context = Context(
        store=repo.store.url, run=RUN, snapshot=NONE, attempt=1, spec=LaunchSpec(command=("train.py",), observe=True),
        determinism=Determinism(), **dict.fromkeys(names, str(folder)),
    )  # fmt: skip
    writer = SpoolWriter(spool, genesis(RUN, 1, "0"))
    return ActiveRank(context, repo, writer, StopRequest(folder / "stop", 1), 0, 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--turn", choices=("with", "without"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.turn:
        sizes = {name: getattr(given, name) for name in ("steps", "layers", "width", "tokens")}
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(turn(Path(folder), observe=given.turn == "with", **sizes)))
        return
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n")
    rounds = [{kind: _started(kind) for kind in ("without", "with")} for _ in range(given.rounds)]
    one = rounds[0]["with"]
    print(f"{one['modules']} modules, {one['tensors']} tensors, {one['elements']} parameters, ", end="")
    print(f"{one['ledger'] / given.steps:.0f} bytes of ledger a step\n")
    columns = ("", "ms a step", "added, median of steps", "added, mean of all steps", "CPU, median", "CPU, mean")
    print(f"| {' | '.join(columns)} |\n|---|---:|---:|---:|---:|---:|")
    for kind in ("without", "with"):
        row = []
        for column in (0, 1):
            for average in (statistics.median, statistics.mean):
                added = [
                    _a_step(each[kind], column, average) / _a_step(each["without"], column, average) for each in rounds
                ]
                row.append(f"{statistics.median(added) - 1:+.2%}")
        ms = 1e3 * statistics.median(_a_step(each[kind], 0, statistics.median) for each in rounds)
        print(f"| {kind} | {ms:.2f} | {' | '.join(row)} |")
    if given.json:
        given.json.write_text(json.dumps(rounds))


def _started(kind: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, *sys.argv, "--turn", kind], check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _a_step(done: dict[str, Any], column: int, average: Callable[[list[float]], float]) -> float:
    """Return the seconds (0) or CPU seconds (1) of a step after the first two."""
    return average([times[column] for times in done["times"][2:]])


if __name__ == "__main__":
    main()
