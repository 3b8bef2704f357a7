"""The ranks that NVIDIA's `ft_launcher` finds stuck, for each kind of stop, by its heartbeats.

Run `python benchmarks/stuck_peers.py --peers PYTHON [--limit 5]`: two gloo ranks, of which rank 1 stops in step 9. The
launcher has no restarts. `tests/flows/test_stuck.py` measures m5ws with the same stops.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_SCRIPT = Path(__file__).with_name("scripts") / "heartbeats.py"
_LAUNCHER = "nvidia_resiliency_ext.fault_tolerance.launcher"
_KINDS = ("stopped", "sleep", "regex", "gil", "read", "lock", "mismatch", "worker")
_CULPRIT = 1
_MISSING = re.compile(r"workload:[^ ]*\((\d+)\) .*Did not get subsequent heartbeat")


def measure(python: str, kind: str, limit_s: float, patience_s: float) -> str:
    """Return the row of a kind: the ranks that the launcher names, and the seconds from the stop to the end."""
    command = [
        python, "-m", _LAUNCHER, "--nproc-per-node=2", "--nnodes=1", "--max-restarts=0", "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:29511", "--monitor-interval=1",
        "--ft-workload-check-interval=1", "--ft-initial-rank-heartbeat-timeout=60",
        f"--ft-rank-heartbeat-timeout={limit_s}", str(_SCRIPT), kind, str(_CULPRIT),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        job = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = job.communicate(timeout=patience_s)
            ended = f"{time.time() - float(re.findall(r'STOPS ([0-9.]+)', output)[0]):.0f}"
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            output, ended = job.communicate()[0], "no end"
    named = sorted(set(_MISSING.findall(output)))
    return f"| {kind} | {'yes' if named else 'no'} | {', '.join(named) or '–'} | {ended} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--limit", type=float, default=5.0)
    parser.add_argument("--kinds", nargs="*", default=_KINDS)
    options = parser.parse_args()
    print("| kind | found | ranks without a heartbeat | s to the end |\n|---|---|---|---:|")
    if subprocess.run([options.peers, "-c", f"import {_LAUNCHER}"], capture_output=True, check=False).returncode:
        print("| not installed | | | |")
        return
    for kind in options.kinds:
        print(measure(options.peers, kind, options.limit, 90.0), flush=True)


if __name__ == "__main__":
    main()
