"""Time, peak memory and store requests of `ls`, `show`, `diff` and the comparison of `reproduce`, at scale.

    python benchmarks/scale.py [--runs 10000] [--steps 10000] [--ranks 64] [--json FILE]

Stores are synthetic and in a directory. One has many runs of one step each: 80 % finished, 10 % failed, 10 % replays
with a verdict. Three have two equal runs each, of a quarter of the steps, of half of them and of all, in batches of 600
steps, as a run with 10 steps a second has. Each row is a process of its own. `--index no` deletes the run index and the
summaries first, which gives a store of an older build.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from m5ws.diff import diff
from m5ws.environment import attempt_environments
from m5ws.records import codec
from m5ws.records.environment import Observed
from m5ws.records.ledger import (
    NODE,
    AttemptEnded,
    AttemptStarted,
    Imported,
    NodeStarted,
    RankEnded,
    RankStarted,
    State,
    Step,
)
from m5ws.records.run import LaunchSpec, Run
from m5ws.records.verdict import Verdict
from m5ws.reports import comparison
from m5ws.repository import reindex
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.spool import RankHeads
from m5ws.repository.references import index_names, runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.reproduce import compare, gaps
from m5ws.runs import history, listing, run_table
from m5ws.store.local import LocalStore
from tests.support.records import planted
from tests.support.stores.passing_store import PassingStore

_BATCH = 600
A, B = "a" * 12, "b" * 12


# --- stores ---------------------------------------------------------------------------------------------------------


def make(folder: Path) -> tuple[Repository, str]:
    """Make a store with one snapshot, and return the snapshot's id."""
    repo = Repository.create(LocalStore(folder / "store", durable=False))
    return repo, planted.publish(
        repo, planted.snapshot(planted.tree(repo, folder / "code", {"train.py": "print(1)\n"}))
    )


def many(folder: Path, count: int) -> None:
    """Fill a store with runs of one step."""
    repo, snapshot = make(folder)
    for number in range(count):
        run = f"{number:012x}"
        if number % 10 == 9:
            original = f"{number - 9:012x}"
            _publish(repo, run, snapshot, number, purpose="reproduce", reproduces=original)
            runs.publish_verdict(repo, Verdict(run=original, replay=run, outcome="reproduced"))
        else:
            _publish(repo, run, snapshot, number, name=f"run {number}")
        _attempt(repo, run, steps=1, ranks=1, outcome="failed" if number % 10 == 8 else "finished")
    reindex.fill(repo)


def long(folder: Path, steps: int, ranks: int) -> None:
    """Fill a store with two equal runs of many steps."""
    repo, snapshot = make(folder)
    for number, run in enumerate((A, B)):
        _publish(repo, run, snapshot, number)
        _attempt(repo, run, steps=steps, ranks=ranks, outcome="finished")
    reindex.fill(repo)


def _publish(repo: Repository, run: str, snapshot: str, number: int, **fields: Any) -> None:
    spec = LaunchSpec(command=("train.py",), trainer="python")
    runs.publish(repo, Run(id=run, snapshot=snapshot, spec=spec, created_s=float(number), **fields))


def _attempt(repo: Repository, run: str, steps: int, ranks: int, outcome: str) -> None:
    writer, heads = ledger.ChainWriter(repo, run, 1), RankHeads(run, 1)

    def publish(events: Mapping[str, Sequence[bytes]]) -> None:
        writer.append(events)
        for origin, stored in ((origin, stored) for origin, each in events.items() for stored in each):
            heads.add(origin, stored)

    node = NodeStarted(node=0, host="host", observed=repo.objects.put_record(Observed()))
    publish({NODE: [codec.encode(event) for event in (AttemptStarted(attempt=1, host="host"), node)]})
    starts = {
        str(rank): (RankStarted(rank=rank, world=ranks, pid=1), Imported(rank=rank, modules=("torch",)))
        for rank in range(ranks)
    }
    publish({rank: [codec.encode(event) for event in events] for rank, events in starts.items()})
    for begin in range(1, steps + 1, _BATCH):
        publish(dict.fromkeys(starts, _events(begin, min(begin + _BATCH, steps + 1), steps)))
    publish({rank: [codec.encode(RankEnded(rank=int(rank)))] for rank in starts})
    ended = AttemptEnded(outcome=outcome, exit_code=0, heads=heads.by_rank)  # type: ignore[arg-type]
    publish({NODE: [codec.encode(ended)]})


def _events(begin: int, end: int, total: int) -> list[bytes]:
    steps: list[Step | State] = []
    for step in range(begin, end):
        quantities = {"loss": (1.0 / step).hex(), "grad_norm": (2.0 / step).hex(), "lr": (1e-3).hex()}
        steps.append(Step(step=step, quantities=quantities, batch=f"{step:064x}", total=total))
        if step % 1000 == 0 or step == total:
            tensors = {f"model.{number}": f"{step * number:016x}" for number in range(100)}
            steps.append(State(step=step, tensors=tensors, generators={"cpu": f"{step:016x}"}))
    return [codec.encode(event) for event in steps]


def forget(folder: Path) -> None:
    """Delete the run index and the summaries, as if an older build had written the store."""
    repo = Repository.open(LocalStore(folder / "store", durable=False))
    for stat in [*repo.store.list(index_names.PREFIX), *repo.store.list("runs/")]:
        if stat.key.startswith(index_names.PREFIX) or "/summaries/" in stat.key:
            repo.store.delete(stat.key)


# --- rows -----------------------------------------------------------------------------------------------------------


def _diff(repo: Repository) -> None:
    diff.between_runs(repo, A, B)
    for run in (A, B):
        attempt_environments.drift_by_attempt(repo, run)


def _compared(repo: Repository) -> None:
    found = compare.compare_histories(history.load(repo, A), history.load(repo, B))
    assert found.first() is None
    assert not gaps.missing(found)


ROWS = {
    "ls": lambda repo: run_table.newest(repo, limit=20),
    "show RUN": lambda repo: listing.view_run(repo, f"{0:012x}"),
    "show SNAPSHOT": lambda repo: listing.view_snapshot(repo, snapshots.ids(repo)[0]),
    "show, long run": lambda repo: listing.view_run(repo, A),
    "diff, long runs": _diff,
    "comparison, long runs": _compared,
    "compare, long runs": lambda repo: comparison.compare(repo, (A, B)),
}


class Requests(Counter[str]):
    """Requests to the store: reads, and listings, of which S3 answers 1,000 keys at a time."""

    def before(self, operation: str, key: str) -> None:
        self["listings" if operation in ("list", "names") else "reads"] += 1


def measure(folder: Path, row: str) -> dict[str, float]:
    """Do one row in this process, and return its time, peak memory above the start's, and requests."""
    requests = Requests()
    inner = LocalStore(folder / "store", durable=False)
    repo = Repository.open(PassingStore(inner, requests.before))
    requests.clear()
    started_mib = _peak_mib()
    began = time.perf_counter()
    ROWS[row](repo)  # type: ignore[operator]
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "peak_mib": _peak_mib(),
        "more_mib": _peak_mib() - started_mib,
        "reads": requests["reads"],
        "listings": requests["listings"],
    }


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _child(*words: str) -> str:
    done = subprocess.run([sys.executable, __file__, *words], check=True, capture_output=True, text=True)
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--index", choices=("yes", "no"), default="yes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--row", nargs=2, metavar=("FOLDER", "ROW"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        return print(json.dumps(measure(Path(arguments.row[0]), arguments.row[1])))
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        stores: dict[str, tuple[Path, tuple[str, ...]]] = {}
        many(root / "many", arguments.runs)
        stores[f"{arguments.runs:,} runs"] = (
            root / "many",
            tuple(row for row in ROWS if row.startswith(("ls", "show RUN", "show SNAPSHOT"))),
        )
        for part in (4, 2, 1):
            steps = arguments.steps // part
            long(root / f"long-{part}", steps, arguments.ranks)
            rows = ("show, long run", "diff, long runs", "comparison, long runs", "compare, long runs")
            stores[f"{steps:,} steps × {arguments.ranks} ranks"] = (root / f"long-{part}", rows)
        for name, (path, rows) in stores.items():
            if arguments.index == "no":
                forget(path)
            found += [{"store": name, "row": row, **json.loads(_child("--row", str(path), row))} for row in rows]
    print("| store | command | seconds | peak MiB | of these beyond the start | reads | listings |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for one in found:
        numbers = f"{one['seconds']:.2f} | {one['peak_mib']:.0f} | {one['more_mib']:.0f}"
        print(f"| {one['store']} | {one['row']} | {numbers} | {one['reads']:,} | {one['listings']:,} |")
    if arguments.json:
        machine = {"python": platform.python_version(), "kernel": platform.release(), "cpus": os.cpu_count()}
        arguments.json.write_text(json.dumps({"machine": machine, "rows": found}, indent=2) + "\n")
    return None


if __name__ == "__main__":
    main()
