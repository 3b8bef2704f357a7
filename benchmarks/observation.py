"""Cost of the observation of a script without a session: the same training with and without it, in turns.

    python benchmarks/observation.py [--rounds 40] [--layers 12] [--width 128] [--tokens 256] [--sharded] [--json FILE]

A GPT of many small modules is trained with AdamW on one thread of one process, since two processes differ by 2 % in
where their memory lies. With `--sharded` its layers are sharded by FSDP2, on this process alone. The C library keeps
freed memory: otherwise it returns some to the system by chance, and to get that again took 0 to 2 ms of a step. In each
round, the training goes on for some steps without observation and for as many with it, the other way round in every
second round. The first three steps of a turn do not count.

The parts of a step are compared by themselves, since their times vary less than the time of the whole: the median of a
turn's steps with and without observation, and the median of these differences over the rounds, with the quartiles.
The steps with a fingerprint (5 and 10), and the steps after them, which record it, do not count either. The cost of a
fingerprint is a figure of its own.
"""

import argparse
import ctypes
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

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
STEPS = 19
COUNTED = (4, 7, 8, 9, *range(12, STEPS + 1))
"""The first steps warm the caches. Others have a fingerprint, or record it."""
FINGERPRINTED = (5, 10)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of `mallopt` in glibc."""

PARTS = ("forward", "loss", "backward", "update")

Times = list[list[float]]
"""The ms of each part of each step of a turn."""


class Training:
    """A GPT, its optimizer and its batches, which are trained in turns."""

    def __init__(self, layers: int, width: int, tokens: int, *, is_sharded: bool) -> None:
        torch.manual_seed(1)
        block = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.model = torch.nn.Sequential(
            torch.nn.Embedding(1000, width), torch.nn.TransformerEncoder(block, layers, enable_nested_tensor=False),
            torch.nn.Linear(width, 1000),
        )  # fmt: skip
        if is_sharded:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            for layer in self.model[1].layers:
                fully_shard(layer)
            fully_shard(self.model)
        self.ledger_bytes = 0
        """The size of the last observed turn's records."""
        self._optimizer = torch.optim.AdamW(self.model.parameters())
        self._loss = torch.nn.CrossEntropyLoss()
        self._tokens = tokens
        self._done = 0

    def turn(self, *, observe: bool) -> Times:
        """Train for some steps."""
        with tempfile.TemporaryDirectory() as folder:
            spool = Path(folder, "0.spool")
            active = _rank(Path(folder), spool) if observe else None
            if active is not None:
                watch.start(active)
            times = [self._step() for _ in range(STEPS)]
            watch.finish()
            if active is not None:
                active.spool.close()
                self.ledger_bytes = spool.stat().st_size
        return times

    def _step(self) -> list[float]:
        x = torch.randint(1000, (1, self._tokens), generator=torch.Generator().manual_seed(self._done))
        self._done += 1
        times = [time.perf_counter()]
        output = self.model(x)
        times.append(time.perf_counter())
        loss = self._loss(output.view(-1, 1000), x.view(-1))
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        self._optimizer.step()
        self._optimizer.zero_grad()
        times.append(time.perf_counter())
        return [1e3 * (end - begin) for begin, end in itertools.pairwise(times)]


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
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n")
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
        if ctypes.CDLL(None).mallopt(option, 2**25) != 1:
            raise SystemExit("the C library does not keep freed memory: use glibc")
    training = Training(given.layers, given.width, given.tokens, is_sharded=given.sharded)
    training.turn(observe=True)
    rounds: list[dict[str, Times]] = []
    for number in range(given.rounds):
        kinds = ("without", "with") if number % 2 else ("with", "without")
        rounds.append({kind: training.turn(observe=kind == "with") for kind in kinds})

    parameters = list(training.model.parameters())
    print(f"{len(list(training.model.modules()))} modules, {len(parameters)} tensors, ", end="")
    print(f"{sum(parameter.numel() for parameter in parameters)} parameters, ", end="")
    print(f"{training.ledger_bytes} bytes of ledger in {STEPS} steps\n")
    done = {kind: [_medians(turns[kind]) for turns in rounds] for kind in ("without", "with")}
    print("| | ms without | added ms | quartiles |\n|---|---:|---:|---:|")
    step = total = 0.0
    for part, name in enumerate(PARTS):
        differences = [two[part] - one[part] for one, two in zip(done["without"], done["with"], strict=True)]
        low, added, high = statistics.quantiles(differences, n=4)
        without = statistics.median(one[part] for one in done["without"])
        step, total = step + without, total + added
        print(f"| {name} | {without:.2f} | {added:.2f} | {low:.2f} to {high:.2f} |")
    print(f"| step | {step:.2f} | {total:.2f}, {total / step:.2%} | |\n")
    fingerprints = [_mean(turns["with"], FINGERPRINTED) - _medians(turns["with"])[-1] for turns in rounds]
    print(f"a fingerprint: {statistics.median(fingerprints):.2f} ms")
    if given.json:
        given.json.write_text(json.dumps(rounds))


def _medians(times: Times) -> list[float]:
    """Return the median of each part's times."""
    return [statistics.median(times[step - 1][part] for step in COUNTED) for part in range(len(PARTS))]


def _mean(times: Times, steps: Sequence[int]) -> float:
    """Return the mean time of the update in some steps."""
    return statistics.mean(times[step - 1][-1] for step in steps)


if __name__ == "__main__":
    main()
