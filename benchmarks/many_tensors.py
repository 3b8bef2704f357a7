"""Cost of a session with many small tensors, beside torch's own distributed checkpoints (DCP) of the same state.

    python benchmarks/many_tensors.py [--parameters 10000] [--elements 100] [--rounds 3] [--sharded]

One process and one thread; with `--sharded`, FSDP2 on two processes of one thread each, of which rank 0 is measured.
AdamW has three tensors for each parameter. *Start* is from the call of `m5ws.session` to the first step, with the
rehearsal of a checkpoint; *resume* the same, with the restore. A step has a fingerprint of all tensors and its record.
The checkpoint is written while the training waits, as with DCP. The ledger has a fingerprint of each of the first five
steps.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).parent / "scripts" / "many_tensors_step.py"
_SETTINGS = """\
[config]
files = []

[run]
trainer = "{trainer}"
nproc = {processes}
checkpoint_every = 6
fingerprint_every = 1

[checkpoint]
asynchronous = false

[mlflow]
enabled = false
"""


def measure(root: Path, parameters: int, elements: int, is_sharded: bool) -> tuple[dict[str, list[float]], int]:
    """Train, fail, and resume; return wall and CPU seconds in turn by name, and the bytes of the ledger."""
    work = root / "work"
    work.mkdir()
    (work / "m5ws.toml").write_text(
        _SETTINGS.format(trainer="torchrun" if is_sharded else "python", processes=2 if is_sharded else 1)
    )
    (work / "train.py").write_text(SCRIPT.read_text())
    out = root / "times.json"
    command = ["--", "train.py", str(out), str(parameters), str(elements), *(["sharded"] if is_sharded else [])]
    run = m5ws(work, "run", *command).split()[0]
    ledger = sum(file.stat().st_size for file in (work / ".m5ws").rglob("ledger/**/*") if file.is_file())
    m5ws(work, "resume", run)
    return json.loads(out.read_text()), ledger


def m5ws(work: Path, verb: str, *words: str) -> str:
    """Call a verb of m5ws with a script that fails in the end; return the output."""
    command = [sys.executable, "-m", "m5ws", "-C", str(work), verb, "--no-progress", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, default=10_000)
    parser.add_argument("--elements", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rounds = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(measure(Path(folder), arguments.parameters, arguments.elements, arguments.sharded))
    found = {
        name: [statistics.median(value for times, _ in rounds for value in times[name][place::2]) for place in (0, 1)]
        for name in rounds[0][0]
    }
    print("| | s | CPU s |\n|---|---:|---:|")
    for name, (wall_s, cpu_s) in found.items():
        print(f"| {name} | {wall_s:.2f} | {cpu_s:.2f} |")
    print(f"\nledger of five fingerprints: {statistics.median(size for _, size in rounds) / 2**20:.2f} MiB")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
