"""Seconds that training steps wait for their data behind a long link that loses packets, and with local files.

    python benchmarks/link.py [--rtt-ms 50] [--loss 0.01] [--congestion reno] [--rounds 2] [--json FILE]

As root: the S3 server and the training are in two network namespaces, and each packet between them is delayed and
sometimes dropped (tests/support/network/lossy_link.py). Each row is an `m5ws run` of one rank. The rows with local
files run in turn with the rows behind the link, on the same machine, with the same samples.
"""

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.network.lossy_link import CLIENT, PRIORITY, SERVER, LossyLink, missing
from tests.support.s3.s3_servers import ENVIRONMENT

_PORT = 9000
_ENDPOINT = f"http://{SERVER}:{_PORT}"
_STEP = Path(__file__).with_name("scripts") / "link_step.py"
_MOTO = Path(__file__).parents[1] / "tests/support/s3/moto_server.py"
_TOKEN_SHARDS, _SHARD_TOKENS = 64, 256 * 1024
_IMAGE_SHARDS, _SHARD_IMAGES = 64, 32
_SETTINGS = """\
[mlflow]
enabled = false
[config]
files = []
[run]
command = ["link_step.py"]
[data]
paths = ["data/near-tokens", "data/near-images"]
[[data.s3]]
path = "data/far-tokens"
url = "s3://data/tokens"
endpoint_url = "{endpoint}"
[[data.s3]]
path = "data/far-images"
url = "s3://data/images"
endpoint_url = "{endpoint}"
"""


def write_tokens(folder: Path) -> None:
    """Write files of token ids."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(1)
    for number in range(_TOKEN_SHARDS):
        np.save(folder / f"{number:03}.npy", draw.integers(0, 50_000, _SHARD_TOKENS).astype(np.uint16))


def write_images(folder: Path) -> None:
    """Write tar files of JPEG images with 256 × 256 pixels, of about 15 KB each."""
    import tarfile

    from PIL import Image

    folder.mkdir(parents=True)
    draw = np.random.default_rng(2)
    for number in range(_IMAGE_SHARDS):
        with tarfile.open(folder / f"{number:03}.tar", "w") as archive:
            for place in range(_SHARD_IMAGES):
                small = Image.fromarray(draw.integers(0, 255, (48, 48, 3)).astype(np.uint8))
                content = io.BytesIO()
                small.resize((256, 256), Image.Resampling.BICUBIC).save(content, "JPEG", quality=85)
                member = tarfile.TarInfo(f"{number:03}-{place:03}.jpg")
                member.size = content.tell()
                content.seek(0)
                archive.addfile(member, content)


_UPLOAD = """\
import pathlib, sys, boto3
client = boto3.client("s3", endpoint_url=sys.argv[1])
where = {"LocationConstraint": "eu-west-1"}
client.create_bucket(Bucket="data", CreateBucketConfiguration=where)
client.put_bucket_versioning(Bucket="data", VersioningConfiguration={"Status": "Enabled"})
for folder in sys.argv[2:]:
    for path in sorted(pathlib.Path(folder).iterdir()):
        client.put_object(Bucket="data", Key=f"{path.parent.name}/{path.name}", Body=path.read_bytes(),
                          ChecksumAlgorithm="SHA256")
"""
_RATE = """\
import concurrent.futures, sys, time, boto3
client = boto3.client("s3", endpoint_url=sys.argv[1])
keys = [f"tokens/{number:03}.npy" for number in range(int(sys.argv[2]) * 2)]
began = time.perf_counter()
with concurrent.futures.ThreadPoolExecutor(int(sys.argv[2])) as pool:
    sizes = list(pool.map(lambda key: len(client.get_object(Bucket="data", Key=key)["Body"].read()), keys))
print(sum(sizes) / (time.perf_counter() - began) / 1e6)
"""


@contextlib.contextmanager
def server(link: LossyLink, folders: list[Path]) -> Iterator[None]:
    """Run an S3 server at the far end, with the files of the folders in a bucket."""
    command = link.inside(SERVER, "nice", "-n", PRIORITY, sys.executable, str(_MOTO), str(_PORT), SERVER)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(3)
        upload = link.inside(SERVER, sys.executable, "-c", _UPLOAD, _ENDPOINT, *map(str, folders))
        subprocess.run(upload, env=os.environ | ENVIRONMENT, check=True)
        yield
    finally:
        process.terminate()
        process.wait()


class Bench:
    """A workspace at the near end, and its runs."""

    def __init__(self, folder: Path, link: LossyLink, options: argparse.Namespace) -> None:
        self._folder, self._link, self._options = folder, link, options
        self.root = folder / "w"
        (self.root / "data").mkdir(parents=True)
        shutil.copy(_STEP, self.root / _STEP.name)
        (self.root / "m5ws.toml").write_text(_SETTINGS.format(endpoint=_ENDPOINT))
        places = {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
        self._environment = os.environ | ENVIRONMENT | places | {"OMP_NUM_THREADS": "1"}

    def m5ws(self, *words: str) -> str:
        command = self._link.inside(CLIENT, sys.executable, "-m", "m5ws", "-C", str(self.root), *words)
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"m5ws {' '.join(words)}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def rate(self, connections: int) -> float:
        """Return the MB/s of a number of connections over the link."""
        command = self._link.inside(CLIENT, sys.executable, "-c", _RATE, _ENDPOINT, str(connections))
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=True)
        return float(done.stdout)

    def forget(self) -> None:
        """Remove the samples' files from the cache of the machine. The counts of their samples stay."""
        shutil.rmtree(self._folder / "cache/m5ws/objects/files", ignore_errors=True)

    def measure(self, kind: str, place: str, steps: int) -> dict[str, Any]:
        """Run a training without a cached file of samples, and return its waits."""
        self.forget()
        out = self._folder / "out.json"
        options = self._options
        numbers = (steps, options.step_ms, options.workers, options.threads)
        self.m5ws("run", "--no-progress", _STEP.name, kind, f"data/{place}-{kind}", *map(str, numbers), str(out))
        measured = json.loads(out.read_text())
        waits_ms = [1000 * wait_s for wait_s in measured["waits_s"]]
        later = waits_ms[options.warm_up :]
        return {
            "kind": kind, "place": place, "start_s": measured["start_s"],
            "warm_up_s": sum(waits_ms[: options.warm_up]) / 1000, "median_ms": statistics.median(later),
            "p99_ms": statistics.quantiles(later, n=100)[98], "max_ms": max(later),
            "late": sum(wait_ms > options.late_ms for wait_ms in later), "later": len(later),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rtt-ms", type=float, default=50)
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--congestion", default="reno")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--step-ms", type=float, default=100)
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--late-ms", type=float, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if (reason := missing()) is not None:
        sys.exit(f"no link: {reason}")
    rows = []
    with tempfile.TemporaryDirectory() as name, LossyLink(options.rtt_ms, options.loss, options.congestion) as link:
        folder = Path(name)
        write_tokens(folder / "far/tokens")
        write_images(folder / "far/images")
        with server(link, [folder / "far/tokens", folder / "far/images"]):
            bench = Bench(folder, link, options)
            for kind in ("tokens", "images"):
                shutil.copytree(folder / "far" / kind, bench.root / f"data/near-{kind}")
            rates = {connections: bench.rate(connections) for connections in (1, options.threads)}
            # The first start reads each file to count its samples.
            counting_s = {
                kind: bench.measure(kind, "far", options.warm_up + 2)["start_s"] for kind in ("tokens", "images")
            }
            for _ in range(options.rounds):
                for kind in ("tokens", "images"):
                    for place in ("near", "far"):
                        rows.append(bench.measure(kind, place, options.steps))
                        print(rows[-1], file=sys.stderr, flush=True)
    print(", ".join(f"{number} connections: {rate:.2f} MB/s" for number, rate in rates.items()))
    print(", ".join(f"first start, {kind}: {seconds:.1f} s" for kind, seconds in counting_s.items()), "\n")
    print(
        "| samples | files | start s | waits in warm-up s | then median ms | p99 ms | maximum ms | steps that waited |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        numbers = " | ".join(f"{row[key]:.2f}" for key in ("start_s", "warm_up_s", "median_ms", "p99_ms", "max_ms"))
        print(f"| {row['kind']} | {row['place']} | {numbers} | {row['late']} of {row['later']} |")
    print(link.counters)
    if options.json:
        options.json.write_text(json.dumps({"rates": rates, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
