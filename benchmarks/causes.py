"""The time of `m5ws cause` with many large logs on this machine, with their parts in the store, and with a bad pattern.

Run `python benchmarks/causes.py [--ranks 1024] [--mib 10]`.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from m5ws.logs import reading
from m5ws.logs.parts import LogParts
from m5ws.records.cause import Rule
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from m5ws.supervision import causes

_RUN = "7c1d0a9b8e2f"
_DISTINCT = 8
_RANKS_PER_NODE = 8
_FAILURE = "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device\n"
_EFFECT = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1\n"


def _text(seed: int, size_bytes: int) -> str:
    line = (
        "2026-11-29 12:00:00,123 trainer: step {:,} loss {:.6f} lr 3e-4 tokens/s 123,456 grad_norm 1.07 shard-{}.bin\n"
    )
    lines = "".join(line.format(step, 1 / (step + seed + 1), step % 97) for step in range(10_000))
    return lines * (size_bytes // len(lines) + 1)


def _write(folder: Path, ranks: int, size_bytes: int) -> None:
    """Write the logs of all ranks: hard links to few files, and a failed rank."""
    folder.mkdir()
    for rank in range(ranks):
        path = folder / f"rank-{rank}.log"
        if rank < _DISTINCT:
            path.write_text(_text(rank, size_bytes) + (_FAILURE if rank == 1 else _EFFECT))
        else:
            os.link(folder / f"rank-{2 + rank % (_DISTINCT - 2)}.log", path)


def _store(repo: Repository, ranks: int, folder: Path) -> None:
    """Store the same ends in parts of nodes of 8 ranks."""
    for node in range(ranks // _RANKS_PER_NODE):
        logs = folder / str(node)
        logs.mkdir(parents=True)
        for rank in range(node * _RANKS_PER_NODE, (node + 1) * _RANKS_PER_NODE):
            (logs / f"rank-{rank}.log").write_text(_text(rank, 1)[-200_000:] + (_FAILURE if rank == 1 else _EFFECT))
        LogParts(repo, _RUN, 1, node, logs).store(last=True)


def _measure(name: str, act: Callable[[], object]) -> None:
    began_s, used_s = time.perf_counter(), time.process_time()
    result = act()
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - used_s
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"| {name} | {wall_s:.1f} | {cpu_s:.1f} | {memory_mib:,} | {result} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--mib", type=int, default=10)
    ranks, mib = vars(parser.parse_args()).values()
    rules = causes.builtin()
    with tempfile.TemporaryDirectory() as folder:
        repo, logs = Repository.create(LocalStore(Path(folder, "store"))), Path(folder, "logs")
        _write(logs, ranks, mib * 2**20)
        _store(repo, ranks, Path(folder, "nodes"))

        def find(source: Path, rules: dict[str, Rule]) -> str:
            ends = reading.Source(repo, _RUN, 1, source).ends(causes.END_LINES)
            cause = causes.Classifier(rules).find({name: end.lines for name, end in ends.items()}, {})
            return "unknown" if cause is None else f"{cause.kind}, rank {cause.rank}"

        slow = msgspec.structs.replace(rules["disk-full"], patterns=(r"(?:.*?\d){12}[PQ]",))
        print("| logs | wall s | CPU s | peak MiB | answer |\n|---|---:|---:|---:|---|")
        _measure(f"{ranks:,} of {mib} MiB, on this machine", lambda: find(logs, dict(rules)))
        _measure(f"{ranks:,} in the store, a directory", lambda: find(Path(folder, "nowhere"), dict(rules)))
        _measure("the same, with a pattern of exponential time", lambda: find(logs, {**rules, "own-rule": slow}))


if __name__ == "__main__":
    main()
