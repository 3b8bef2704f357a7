"""Seconds of a restore from copies on the local disk, and from S3 over a link with a limited rate.

    python benchmarks/checkpoint_restore.py [--mib 256] [--nproc 8] [--mb-per-s 50] [--rtt-ms 1] [--rounds 5]
                                            [--folder PATH]

The state is the state of an FSDP2 model with AdamW, `--mib` on all ranks together, on CPUs, as in checkpoints.py. It is
saved with copies and without (four times each; the first is reported). Then new processes load the last save in turn:
from the copies while the kernel still has their files in memory, from the copies on the disk, and from S3. Each load
verifies all bytes. All ranks are on this machine, as on one node. `--folder` is where the copies are. The S3 server is
moto, behind a relay on this machine (tests/support/network/delay_line.py), whose rate all ranks share.
"""

import argparse
import os
import statistics
import sys
import tempfile
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.checkpoints import launch, server
from tests.support.network.proxies import DelayLine

_TOOL = "m5ws async-s3"


def evict(folder: Path) -> None:
    """Remove the files in a folder from the memory of the kernel. The files are synced."""
    for path in (each for each in folder.rglob("*") if each.is_file()):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--nproc", type=int, default=8)
    parser.add_argument("--mb-per-s", type=float, default=50)
    parser.add_argument("--rtt-ms", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    given = parser.parse_args()
    saves: dict[str, list[tuple[float, float]]] = {"with copies": [], "without": []}
    loads: dict[str, list[float]] = {"copies, in memory": [], "copies, on disk": [], "S3": []}
    with server("moto") as (environment, _, bucket), tempfile.TemporaryDirectory(dir=given.folder) as name:
        target = environment["AWS_ENDPOINT_URL"].removeprefix("http://")
        with DelayLine(target, given.rtt_ms, given.mb_per_s) as line:
            environment["AWS_ENDPOINT_URL"] = line.endpoint
            copied = environment | {"BENCHMARK_LOCAL": name}
            url = f"s3://{bucket}/{uuid.uuid4().hex}"
            for kind, place, variables in (("with copies", url, copied), ("without", f"{url}-alone", environment)):
                rows = launch(_TOOL, given.mib, "save", place, given.nproc, variables)
                saves[kind] += [
                    (rows[row]["stall_s"], rows[row]["total_s"]) for row in ("first", "second", "all changed")
                ]
            for number in range(given.rounds):
                for kind in list(loads)[:: -1 if number % 2 else 1]:
                    if kind == "copies, on disk":
                        evict(Path(name))
                    variables = environment if kind == "S3" else copied
                    rows = launch(_TOOL, given.mib, "load", url, given.nproc, variables)
                    loads[kind].append(rows["load"]["total_s"])
                    print(kind, loads[kind][-1], file=sys.stderr, flush=True)
    print(f"{given.mib} MiB on {given.nproc} ranks; S3 at {given.mb_per_s:g} MB/s, {given.rtt_ms:g} ms\n")
    print("| | median s | least s | most s |\n|---|---:|---:|---:|")
    for kind, times in loads.items():
        print(f"| load from {kind} | {statistics.median(times):.2f} | {min(times):.2f} | {max(times):.2f} |")
    for kind, pairs in saves.items():
        all_s = [total_s for _, total_s in pairs]
        print(f"| save {kind} | {statistics.median(all_s):.2f} | {min(all_s):.2f} | {max(all_s):.2f} |")
    print("\nTraining stopped for a save, median s: ", end="")
    print(
        ", ".join(f"{kind} {statistics.median(stall_s for stall_s, _ in pairs):.2f}" for kind, pairs in saves.items())
    )


if __name__ == "__main__":
    main()
