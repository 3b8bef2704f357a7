"""Cost of the notes of reads: 10,000 opens an epoch, with the audit hook and without it, in processes in turns.

    python benchmarks/reads.py [--rounds 10] [--epochs 3] [--json FILE]

An epoch has 100 steps of 100 ms, and each step opens 100 files. The opens alone are timed, since the rest of a step
does not depend on the hook. The files are in the work directory, as pinned data is, or in a folder elsewhere, where
each file is noted in the first epoch. The supervisor computes digests in another process, and is not measured here.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from m5ws.records.environment import Determinism
from m5ws.records.launch import Context
from m5ws.records.run import LaunchSpec
from m5ws.training.runtime import reads

FILES, STEPS, STEP_MS = 10_000, 100, 100.0
PLACES = ("work directory", "elsewhere")


def _context(root: Path) -> Context:
    return Context(
        store=str(root / "store"),
        run="0" * 12,
        snapshot="0" * 64,
        attempt=1,
        spec=LaunchSpec(command=("x.py",)),
        determinism=Determinism(),
        work_dir=str(root / "attempt" / "work"),
        spool_dir=str(root / "spool"),
        log_dir=str(root / "log"),
        output_dir=str(root / "out"),
        author_dir=str(root / "author"),
    )


def _folder(root: Path, place: str) -> Path:
    return root / ("attempt/work/data" if place == PLACES[0] else "elsewhere")


def make(root: Path) -> None:
    """Make the files of both places."""
    (root / "spool").mkdir()
    for folder in (_folder(root, place) for place in PLACES):
        folder.mkdir(parents=True)
        for number in range(FILES):
            (folder / f"{number}.bin").write_bytes(b"x")


def epochs(root: Path, place: str, count: int, *, is_noted: bool) -> list[float]:
    """Return the ms that a step opens files, for each epoch, in this process."""
    (root / "spool" / "reads").unlink(missing_ok=True)
    if is_noted:
        reads.note_reads(_context(root), os.environ)
    paths, times = [str(_folder(root, place) / f"{number}.bin") for number in range(FILES)], []
    for _ in range(count):
        began_s = time.perf_counter()
        for path in paths:
            open(path, "rb").close()  # the open alone is timed
        times.append((time.perf_counter() - began_s) * 1000 / STEPS)
    return times


def _in_process(root: Path, place: str, count: int, *, is_noted: bool) -> list[float]:
    command = (sys.executable, __file__, "--root", str(root), "--place", place, "--epochs", str(count))
    done = subprocess.run((*command, *(["--noted"] if is_noted else [])), capture_output=True, check=True)
    return [float(value) for value in json.loads(done.stdout)]


def measure(root: Path, rounds: int, count: int) -> dict[str, dict[str, float]]:
    """Return the medians by place: ms of a step's opens without notes, in the first and in later epochs with them."""
    medians: dict[str, dict[str, float]] = {}
    pick: dict[str, Callable[[Sequence[float]], float]] = {"first": lambda times: times[0], "later": statistics.median}
    for place in PLACES:
        turns: dict[bool, list[list[float]]] = {False: [], True: []}
        for number in range(rounds):
            for is_noted in (number % 2 == 0, number % 2 == 1):
                turns[is_noted].append(_in_process(root, place, count, is_noted=is_noted))
        without = statistics.median(statistics.median(times[1:]) for times in turns[False])
        rows = {name: statistics.median(take(times if name == "first" else times[1:]) for times in turns[True])
                for name, take in pick.items()}  # fmt: skip
        medians[place] = {"without": without, **rows}
    return medians


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--place", help=argparse.SUPPRESS)
    parser.add_argument("--noted", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.root is not None:
        print(json.dumps(epochs(given.root, given.place, given.epochs, is_noted=given.noted)))
        return
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        medians = measure(Path(folder), given.rounds, given.epochs)
    print("| files | without, ms a step | first epoch | later epochs | share of 100 ms, later |\n|---|---|---|---|---|")
    for place, row in medians.items():
        share = (row["later"] - row["without"]) / STEP_MS
        print(f"| {place} | {row['without']:.2f} | {row['first']:.2f} | {row['later']:.2f} | {share:+.2%} |")
    if given.json is not None:
        given.json.write_text(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main()
