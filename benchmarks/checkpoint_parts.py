"""The parts of a checkpoint's time, in seconds a GiB of a rank's state.

    python benchmarks/checkpoint_parts.py [--mib 1024] [--nproc 2] [--rounds 3]

The state and the saves are as in `checkpoints.py`, to a local disk, with every tensor changed. Each part is the sum
of the durations of its calls on all threads of a rank, so that parts together may take more than *all*, which is the
time from the beginning of the save until it is published. *Collectives* contains the time that a rank waits for others.
*Rest* is the time of the saving thread in none of the parts: plans of DCP, records, waiting for threads.
"""

import argparse
import collections
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
PARTS = ("copy", "fingerprint", "collectives", "hash", "write", "fsync", "rest", "all")


class Clock:
    """Durations by part. A call within another part's call counts for the outer part."""

    def __init__(self) -> None:
        self.seconds: collections.Counter[str] = collections.Counter()
        self.of_main: collections.Counter[str] = collections.Counter()
        self._inside = threading.local()
        self._main = threading.get_ident()

    def around(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call`, whose durations are added to a part."""

        @functools.wraps(call)
        def timed(*arguments: Any, **named: Any) -> Any:
            if getattr(self._inside, "yes", False):
                return call(*arguments, **named)
            self._inside.yes = True
            began = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self._inside.yes = False
                self.seconds[part] += time.perf_counter() - began
                if threading.get_ident() == self._main:
                    self.of_main[part] += time.perf_counter() - began

        return timed


@contextlib.contextmanager
def timed_calls(clock: Clock) -> Iterator[None]:
    """Measure the calls that a save consists of."""
    import torch.distributed as dist

    from m5ws.repository.objects import Objects
    from m5ws.training.fingerprint import fingerprint

    places: list[tuple[str, Any, str]] = [
        ("fingerprint", fingerprint, "local"),
        ("fingerprint", fingerprint, "merge"),
        ("hash", Objects, "digest"),
        ("write", os, "write"),
        ("fsync", os, "fsync"),
        *(("collectives", dist, name) for name in ("all_gather_object", "gather_object", "broadcast_object_list")),
        *(("collectives", dist, name) for name in ("scatter_object_list", "all_gather", "all_reduce", "barrier")),
    ]
    before = [(owner, name, getattr(owner, name)) for _, owner, name in places]
    for (part, owner, name), (*_, call) in zip(places, before, strict=True):
        setattr(owner, name, clock.around(part, call))
    try:
        yield
    finally:
        for owner, name, call in before:
            setattr(owner, name, call)


def rank(mib: int, place: str, out: Path) -> None:
    """Save in one of the ranks, and write the seconds of each part."""
    import torch.distributed as dist

    from benchmarks.scripts import checkpoint_save as script

    dist.init_process_group("gloo")
    model, optimizer = script.build(mib, "save")
    tool: Any = script.TOOLS["m5ws async"](model, optimizer, place)
    script.step(model, optimizer, 1.0)
    tool.save(0)
    tool.wait()
    script.step(model, optimizer, 1.0)
    dist.barrier()
    clock = Clock()
    # In this thread, which then knows its own time, and with a copy, as beside a training.
    tool._saver.begin = tool._saver.run  # noqa: SLF001
    tool._backend.stage = clock.around("copy", tool._backend.stage)  # noqa: SLF001
    with timed_calls(clock):
        began = time.perf_counter()
        tool.save(1)
        everything = time.perf_counter() - began
    gib = sum(piece.tensor.nbytes for piece in tool._backend.tensors()) / 2**30  # noqa: SLF001
    clock.seconds["rest"] = everything - sum(clock.of_main.values())
    clock.seconds["all"] = everything
    if dist.get_rank() == 0:
        out.write_text(json.dumps({part: clock.seconds[part] / gib for part in PARTS}))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank(arguments.mib, arguments.rank[0], Path(arguments.rank[1]))
        return
    found: list[dict[str, float]] = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command += ["--nproc-per-node", str(arguments.nproc), __file__, "--mib", str(arguments.mib)]
            command += ["--rank", f"{folder}/store", f"{folder}/out.json"]
            more = {"OMP_NUM_THREADS": "1", "BENCHMARK_SPOOL": folder, "GLOO_SOCKET_IFNAME": "lo"}
            subprocess.run(command, env=os.environ | more, check=True, capture_output=True)
            found.append(json.loads(Path(folder, "out.json").read_text()))
    print(f"{arguments.mib} MiB on {arguments.nproc} ranks, medians of {arguments.rounds}, s a GiB of a rank's state\n")
    print(f"| {' | '.join(PARTS)} |\n|{'---:|' * len(PARTS)}")
    print(f"| {' | '.join(f'{statistics.median(one[part] for one in found):.2f}' for part in PARTS)} |")


if __name__ == "__main__":
    main()
