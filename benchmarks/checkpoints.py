"""Cost of a checkpoint: the time for which the training is stopped, the total time, bytes, memory, and loading.

    python benchmarks/checkpoints.py [--mib 2048] [--nproc 2] [--rounds 3] [--s3 ceph|ceph-tls|moto] [--connector PATH]
                                     [--only TOOL …] [--folder PATH] [--pause S]

The state is the state of an FSDP2 model with AdamW, `--mib` on all ranks together, on CPUs. Each tool, in turn, saves
it four times: all new, twice after a step on all of it, after a step on a tenth. Then it loads on as many ranks, and on
one, into a new model whose optimizer has no state yet. Each round has the tools in the opposite order of the round
before, and `--pause` waits before each, because a disk is slower after much was written. `--folder` is where local
tools save; in `/dev/shm` there is no disk.

Peers: `torch.save` and PyTorch's FileSystemWriter, both synced; the same bytes by the fastest client, unhashed; a copy
within memory; the S3 connector for PyTorch, if `--connector` names its folder. Ceph before 18 refuses the connector's
uploads: use `--s3 moto`. `--s3 ceph-tls` uses https, where m5ws sends a CRC-64 instead of a signature of the bytes, as
with AWS. docs/benchmarks.md discusses times of a server on the same cores.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
SCRIPT = Path(__file__).parent / "scripts" / "checkpoint_save.py"
LOCAL = ("copy", "torch.save", "dcp", "dcp async", "m5ws", "m5ws async")
REMOTE = ("raw-s3", "connector-s3", "connector async-s3", "m5ws-s3", "m5ws async-s3")
# They cannot load on another number of ranks, since they do not record the layout of tensors.
FIXED = ("copy", "torch.save", "raw-s3")

Rows = dict[str, dict[str, float]]


class Place:
    """The destination of a tool's saves: a folder, or a prefix of a bucket."""

    def __init__(self, url: str, client: object = None, bucket: str = "") -> None:
        self.url, self._client, self._bucket = url, client, bucket

    def size_mib(self) -> float:
        """Return the size of all files or objects there."""
        if self._client is None:
            return sum(path.stat().st_size for path in Path(self.url).rglob("*") if path.is_file()) / 2**20
        return sum(found["Size"] for page in self._pages() for found in page.get("Contents", ())) / 2**20

    def remove(self) -> None:
        """Delete all files or objects there, so that they cost the next tool no memory or disk."""
        if self._client is None:
            shutil.rmtree(self.url)
            return
        for page in self._pages():
            if keys := [{"Key": found["Key"]} for found in page.get("Contents", ())]:
                self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": keys})  # type: ignore[attr-defined]

    def _pages(self) -> Iterable[dict[str, Any]]:
        assert self._client is not None
        prefix = self.url.partition(f"{self._bucket}/")[2].partition("?")[0]
        return self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)  # type: ignore[attr-defined,no-any-return]


def launch(tool: str, mib: int, mode: str, place: str, nproc: int, environment: dict[str, str]) -> Rows:
    """Run one tool once."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc)]
        command += [str(SCRIPT), tool, str(mib), mode, place, str(out)]
        more = {"OMP_NUM_THREADS": "1", "BENCHMARK_SPOOL": folder, "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(command, env=os.environ | environment | more, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{tool}: {done.stderr[-3000:]}")
        rows: Rows = json.loads(out.read_text())
        return rows


@contextlib.contextmanager
def server(kind: str) -> Iterator[tuple[dict[str, str], object, str]]:
    """Start an S3 server; yield the environment of its clients, a client, and a bucket."""
    more = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if kind.startswith("ceph"):
            from tests.support.s3.ceph import hold
            from tests.support.s3.s3_client import connect, fresh_bucket

            found = stack.enter_context(hold(folder / "ceph"))
            keys, endpoint = found.users["admin"], found.endpoint
            client = connect(endpoint, keys)
            if kind == "ceph-tls":
                endpoint, more = found.secure_endpoint, {"AWS_CA_BUNDLE": found.authority}
            bucket = fresh_bucket(client)
            access, secret = keys.access_key, keys.secret_key
        else:
            from tests.support.s3.s3_servers import ENVIRONMENT, moto

            light = stack.enter_context(moto(folder / "moto.log"))
            endpoint, client = light.endpoint, light.client("us-east-1")
            access, secret = ENVIRONMENT["AWS_ACCESS_KEY_ID"], ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]
            bucket = "benchmark"
            client.create_bucket(Bucket=bucket)
        environment = {
            "AWS_ACCESS_KEY_ID": access,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            **more,
        }
        yield environment, client, bucket


def one_round(tool: str, mib: int, nproc: int, place: Place, environment: dict[str, str]) -> Rows:
    """Save, then load on as many ranks and on one."""
    rows = launch(tool, mib, "save", place.url, nproc, environment)
    rows["stored"] = {"mib": place.size_mib()}
    if tool != "copy":
        rows["load"] = launch(tool, mib, "load", place.url, nproc, environment)["load"]
    if tool not in FIXED:
        rows["load on one rank"] = launch(tool, mib, "load", place.url, 1, environment)["load"]
    return rows


def table(found: dict[str, list[Rows]]) -> str:
    """Return the medians as a table: seconds for which the training was stopped / seconds in all."""
    saves = ("first", "all changed", "a tenth changed")
    heads = [*(f"{name}: stall / all, s" for name in saves), "stored MiB", "memory MiB", "load s", "on one rank s"]
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]

    def median(rounds: list[Rows], row: str, key: str) -> str:
        values = [one[row][key] for one in rounds if row in one]
        return f"{statistics.median(values):.2f}" if values else "-"

    for tool, rounds in found.items():
        cells = [f"{median(rounds, name, 'stall_s')} / {median(rounds, name, 'total_s')}" for name in saves]
        memory = max(one[name]["memory_mib"] for one in rounds for name in saves)
        cells += [f"{float(median(rounds, 'stored', 'mib')):.0f}", f"{memory:.0f}"]
        cells += [median(rounds, "load", "total_s"), median(rounds, "load on one rank", "total_s")]
        lines.append(f"| {tool.removesuffix('-s3')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--s3", choices=["ceph", "ceph-tls", "moto"], default="ceph")
    parser.add_argument("--connector", help="folder with s3torchconnector, if it is not installed")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--pause", type=float, default=0.0, metavar="S")
    parser.add_argument("--only", nargs="+", choices=[*LOCAL, *REMOTE])
    arguments = parser.parse_args()
    wanted = arguments.only or [*LOCAL, *REMOTE]
    results: dict[str, list[Rows]] = {tool: [] for tool in wanted}
    with contextlib.ExitStack() as stack:
        environment: dict[str, str] = {}
        client, bucket = None, ""
        if set(wanted) & set(REMOTE):
            environment, client, bucket = stack.enter_context(server(arguments.s3))
        if arguments.connector:
            path = os.pathsep.join([arguments.connector, os.environ.get("PYTHONPATH", "")])
            environment["PYTHONPATH"] = path.rstrip(os.pathsep)
        for number in range(arguments.rounds):
            for tool in wanted[:: -1 if number % 2 else 1]:
                time.sleep(arguments.pause)
                name = uuid.uuid4().hex
                if tool in REMOTE:
                    options = "?integrity=crc64nvme" if arguments.s3 == "ceph-tls" and "m5ws" in tool else ""
                    place = Place(f"s3://{bucket}/{name}{options}", client, bucket)
                else:
                    place = Place(tempfile.mkdtemp(prefix="checkpoints-", dir=arguments.folder))
                try:
                    results[tool].append(one_round(tool, arguments.mib, arguments.nproc, place, environment))
                    print(table({tool: results[tool]}).splitlines()[-1], file=sys.stderr, flush=True)
                except RuntimeError as error:
                    print(error, file=sys.stderr, flush=True)
                finally:
                    place.remove()
    print(f"{arguments.mib} MiB on {arguments.nproc} ranks, {arguments.rounds} rounds; S3: {arguments.s3}\n")
    print(table({tool: rounds for tool, rounds in results.items() if rounds}))


if __name__ == "__main__":
    main()
