"""Seconds and requests of commands on a store that answers after 200 ms, with few and with many runs of others.

    python benchmarks/latency.py [--others 20 2000] [--rtt-ms 200] [--rounds 3] [--json FILE]

The store is an S3 server in memory, behind a delay line (tests/support/network/delay_line.py), which delays each
byte by half of the round trip. Each row is a process. `first` has an empty cache, `again` repeats it. The peer is
`mlflow runs list` on an MLflow server with the same number of runs, behind a delay line too.
"""

import argparse
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from m5ws.records.store import Format
from m5ws.repository.repository import Repository
from tests.support.network.proxies import DelayLine
from tests.support.records import many_runs
from tests.support.s3.s3_servers import ENVIRONMENT
from tests.support.s3.scripted_s3 import ScriptedS3
from tests.support.stores.memory_store import MemoryStore

_M5WS = [sys.executable, "-m", "m5ws"]
_SETTINGS = """\
[mlflow]
enabled = false
[config]
files = []
[run]
command = ["train.py", "4"]
"""
_SCRIPT = """\
import sys
import time
import torch
import m5ws
m5ws.seed(time.time_ns() % 2**31)  # New tensors in each run.
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
session = m5ws.session(model, optimizer, total_steps=12, checkpoint_every=int(sys.argv[1]))
for step in session.steps():
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step.record(loss=loss)
"""


class Bench:
    """Commands on one store, each timed with the number of its requests."""

    def __init__(self, folder: Path, server: ScriptedS3, endpoint: str, rounds: int) -> None:
        self._folder, self._server, self._endpoint, self._rounds = folder, server, endpoint, rounds
        self.rows: list[dict[str, Any]] = []

    def workspace(self, name: str) -> tuple[Path, dict[str, str]]:
        """Make a workspace on a machine of its own."""
        root = self._folder / name / "w"
        root.mkdir(parents=True)
        (root / "train.py").write_text(_SCRIPT)
        store = f'[store]\nurl = "s3://bucket/store"\nendpoint_url = "{self._endpoint}"\n'
        (root / "m5ws.toml").write_text(f"{_SETTINGS}{store}")
        places = {"XDG_CACHE_HOME": str(root.parent / "cache"), "XDG_STATE_HOME": str(root.parent / "state")}
        return root, os.environ | ENVIRONMENT | places

    def run(self, root: Path, environment: dict[str, str], *words: str) -> tuple[float, int]:
        """Run a command and return its seconds and requests."""
        self._server.requests.clear()
        began = time.perf_counter()
        subprocess.run([*_M5WS, "-C", str(root), *words], env=environment, check=True, capture_output=True)
        return time.perf_counter() - began, len(self._server.requests)

    def measure(self, name: str, *words: str, own: tuple[Path, dict[str, str]] | None = None) -> None:
        """Add a row: first, and again, in a new workspace for each round, or repeatedly in `own`."""
        first, again = [], []
        for number in range(self._rounds):
            place = own or self.workspace(f"{name.replace(' ', '-')}-{number}")
            first.append(self.run(*place, *words))
            again.append(self.run(*place, *words))
            if own is None:
                shutil.rmtree(place[0].parent)
        self.rows.append({"row": name, **_summary("first", first), **_summary("again", again)})


def _summary(kind: str, runs: list[tuple[float, int]]) -> dict[str, float]:
    return {
        f"{kind}_s": statistics.median(seconds for seconds, _ in runs),
        f"{kind}_requests": max(requests for _, requests in runs),
    }


@contextmanager
def mlflow_server(folder: Path, others: int) -> Iterator[int]:
    """Run an MLflow server with runs in SQLite, and yield its port."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(uri)
    for number in range(others):
        run = client.create_run("0", run_name=f"run {number}").info.run_id
        client.log_batch(run, [Metric("loss", 1.0, 0, 12)], [Param("lr", str(number))])
        client.set_terminated(run)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--backend-store-uri", uri, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", *words], cwd=folder, stderr=subprocess.DEVNULL
    )
    try:
        _await(port)
        yield port
    finally:
        process.terminate()
        process.wait()


def _await(port: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise TimeoutError("MLflow did not start")


def peer(folder: Path, others: int, rtt_ms: float, rounds: int) -> dict[str, Any]:
    """Return the row of `mlflow runs list`."""
    with mlflow_server(folder, others) as port, DelayLine(f"127.0.0.1:{port}", rtt_ms) as line:
        environment = os.environ | {"MLFLOW_TRACKING_URI": line.endpoint}
        command = [sys.executable, "-m", "mlflow", "runs", "list", "--experiment-id", "0"]
        seconds = []
        for _ in range(rounds + 1):
            began = time.perf_counter()
            subprocess.run(command, env=environment, check=True, capture_output=True)
            seconds.append(time.perf_counter() - began)
    return {"row": "mlflow runs list", "first_s": seconds[0], "again_s": statistics.median(seconds[1:])}


def measure(folder: Path, others: int, rtt_ms: float, rounds: int) -> list[dict[str, Any]]:
    """Return the rows with a number of runs of others."""
    store = MemoryStore()
    many_runs.fill(Repository.create(store, Format(home_region="eu-west-1")), others)
    with ScriptedS3() as server:
        server.objects |= {key: data for key, (data, _) in store.objects.items()}
        with DelayLine(server.endpoint.removeprefix("http://"), rtt_ms) as line:
            bench = Bench(folder, server, line.endpoint, rounds)
            own = bench.workspace("own")
            bench.run(*own, "snapshot")
            bench.measure("snapshot, unchanged", "snapshot", own=own)
            for every, row in (("12", "run, 12 steps, 1 checkpoint"), ("4", "run, 12 steps, 3 checkpoints")):
                bench.measure(row, "run", "--no-progress", "train.py", every, own=own)
            bench.measure("ls", "ls")
            bench.measure("show RUN", "show", many_runs.run_id(3))
    return [{"others": others, **row} for row in [*bench.rows, peer(folder, others, rtt_ms, rounds)]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--others", type=int, nargs="+", default=[20, 2000])
    parser.add_argument("--rtt-ms", type=float, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for others in arguments.others:
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(Path(folder), others, arguments.rtt_ms, arguments.rounds)
    print("| runs of others | command | first, s | requests | again, s | requests |")
    print("|---:|---|---:|---:|---:|---:|")
    for row in rows:
        numbers = (f"{row[f'{kind}_s']:.1f} | {row.get(f'{kind}_requests', '-')}" for kind in ("first", "again"))
        print(f"| {row['others']:,} | {row['row']} | {' | '.join(numbers)} |")
    if arguments.json:
        machine = {"python": platform.python_version(), "kernel": platform.release(), "cpus": os.cpu_count()}
        arguments.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
