"""Start and memory of `m5ws.data.Loader` on a data set of many files, with an index that is kept from an earlier start.

    python benchmarks/loader.py [--files 100000] [--rows 100] [--rounds 3] [--workers 0 2]

Each file is an array of `rows` samples of eight integers. *Start* is from the call of the loader to its first batch, in
a process that has imported torch. *Memory* is the growth of the process up to its largest size, after the start, and
after `steps` batches of 1,000 samples from all parts of the epoch. Workers are processes of their own.

*A new node* reads the counts from a store in a directory, where an earlier node published them, in the 64 parts of a
data set of 10 TB.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from m5ws.data import Loader, Source, counting
from m5ws.data.counting import Home
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore

BATCH, STEPS = 1000, 1000


class File:
    """A file of the data set."""

    def __init__(self, path: str) -> None:
        self.path = path


class Folder:
    """The files of a folder, as an open data set."""

    name = folder = "data/many"
    digest = "benchmark"

    def __init__(self, root: Path, files: int) -> None:
        self.root = root
        self.files = [File(f"{number // 1000:03}/{number:06}.npy") for number in range(files)]

    def fetch(self, index: int) -> Path:
        return self.root / self.files[index].path


def write(root: Path, files: int, rows: int) -> Folder:
    dataset = Folder(root, files)
    for number, file in enumerate(dataset.files):
        path = root / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.full((rows, 8), number, np.int32))
    return dataset


def child(root: Path, files: int, workers: int) -> dict[str, float]:
    dataset, before = Folder(root, files), largest_mb()
    began_s = time.perf_counter()
    loader = Loader(Source(dataset=dataset), batch_size=BATCH, cache=root / "cache", workers=workers)
    made_s = time.perf_counter() - began_s
    next(loader)
    start_s, start_mb = time.perf_counter() - began_s, largest_mb() - before
    began_s = time.perf_counter()
    for _ in range(STEPS):
        next(loader)
    rate = STEPS * BATCH / (time.perf_counter() - began_s)
    return {"made_s": made_s, "start_s": start_s, "start_mb": start_mb, "mb": largest_mb() - before, "rate": rate}


def new_node(root: Path, files: int, rows: int) -> float:
    """Return the seconds in which a node reads the counts that another node has published."""
    home = Home(Repository.create(LocalStore(root / "store")), 0.0, [10**13 // files] * files)
    counting.count(home, "d" * 64, "npy", range(files), lambda _: rows)

    def refuse(file: int) -> int:
        raise AssertionError(f"file {file} is counted again")

    began_s = time.perf_counter()
    counting.count(home, "d" * 64, "npy", range(files), refuse)
    return time.perf_counter() - began_s


def largest_mb() -> float:
    # Not getrusage, which counts the parent of a started process.
    found = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(found.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(Path(options.child[0]), options.files, int(options.child[1]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        dataset = write(root, options.files, options.rows)
        began_s = time.perf_counter()
        Loader(Source(dataset=dataset), batch_size=BATCH, cache=root / "cache")
        print(
            f"index of {options.files:,} files: {time.perf_counter() - began_s:.1f} s, "
            f"{sum(file.stat().st_size for file in (root / 'cache').rglob('*.index')):,} bytes\n"
        )
        print(f"a new node, by counts in the store: {new_node(root, options.files, options.rows):.2f} s\n")
        print("| workers | loader made | to the first batch | memory after it | after 1,000,000 samples | samples/s |")
        print("|---|---|---|---|---|---|")
        for workers in options.workers:
            command = [sys.executable, __file__, "--files", str(options.files), "--child", folder, str(workers)]
            done = [
                json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                for _ in range(options.rounds)
            ]
            made, start, start_mb, mb, rate = (statistics.median(item[key] for item in done) for key in done[0])
            print(f"| {workers} | {made:.2f} s | {start:.2f} s | {start_mb:.0f} MB | {mb:.0f} MB | {rate:,.0f} |")


if __name__ == "__main__":
    main()
