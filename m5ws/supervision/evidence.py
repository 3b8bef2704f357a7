"""Evidence about a node whose ranks make no progress: lines of its kernel's log about faults, and its GPUs."""

import os
import re
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from m5ws import secret_scan
from m5ws.records.stacks import NodeEvidence
from m5ws.supervision import processes

_FAULT = re.compile(
    r"out of memory|oom[-_]kill|killed process|nvrm|\bxid\b|i/o error|read-only|blocked for more than|lockup|rcu.*stall"
    r"|\bmce:|machine check|hardware error|\bedac\b|link (is )?down|tx timeout|not responding|segfault at"
    r"|(\befa\b|mlx5|nvme|transmit queue).*(error|fail|timed? ?out|abort)",
    re.IGNORECASE,
)
_MOST_LINES, _SHOWN_LINES = 20, 3
_SMI_FIELDS = "index,temperature.gpu,utilization.gpu,memory.used,clocks_throttle_reasons.active"
_SMI_FAULTS = "ecc.errors.uncorrected.volatile.total,retired_pages.pending"
_SMI = ("nvidia-smi", "--format=csv,noheader", f"--query-gpu={_SMI_FIELDS},{_SMI_FAULTS}")
_NONE = r"\[?N/A\]?|\[Not Supported\]"
_FAULTLESS = re.compile(rf", (0|{_NONE}), (No|{_NONE})$")
_SMI_S = 10.0
"""A driver that hangs is evidence too."""


def take(host: str, seconds: float) -> NodeEvidence:
    """Return the evidence of this node, named `host`, about the last `seconds`. Never fails."""
    kernel, gpus, problems = tuple[str, ...](), tuple[str, ...](), list[str]()
    try:
        kernel = find_faults(read_kernel_log(), seconds)
    except OSError as error:
        problems.append(f"the kernel's log may not be read: {error.strerror}")
    try:
        done = processes.run(_SMI, _SMI_S)
        done.check_returncode()
        gpus = tuple(done.stdout.decode(errors="replace").split("\n"))
    except FileNotFoundError:
        pass  # No GPU of NVIDIA is here.
    except (OSError, subprocess.SubprocessError) as error:
        problems.append(f"the state of the GPUs is unknown: {error}")
    return NodeEvidence(host=host, kernel=kernel, gpus=tuple(filter(None, gpus)), problems=tuple(problems))


def describe(nodes: Sequence[NodeEvidence]) -> list[str]:
    """Return the newest lines of the kernels, GPUs with faults, and at last the missing parts."""
    faults = [f"{node.host}, kernel, {line}" for node in nodes for line in node.kernel[-_SHOWN_LINES:]]
    faults += [f"{node.host}, GPU {gpu}" for node in nodes for gpu in node.gpus if not _FAULTLESS.search(gpu)]
    return [*faults, *(f"{node.host}, {problem}" for node in nodes for problem in node.problems)][:_MOST_LINES]


def find_faults(log: str, seconds: float, now_s: float | None = None) -> tuple[str, ...]:
    """Return the newest lines about faults in the last `seconds`, with their age, and with secrets masked.

    `now_s` is the kernel's own clock (https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg).
    """
    now_s = time.clock_gettime(time.CLOCK_MONOTONIC) if now_s is None else now_s
    records = (re.match(r"\d+,\d+,(\d+),[^;]*;(.*)", line) for line in log.splitlines())
    ages = [(now_s - int(each[1]) / 1e6, each[2]) for each in records if each and _FAULT.search(each[2])]
    lines = [f"{age_s:.0f} s ago: {secret_scan.masked(text)[:300]}" for age_s, text in ages if age_s <= seconds]
    return tuple(lines[-_MOST_LINES:])


def read_kernel_log(path: Path = Path("/dev/kmsg")) -> str:
    """Return the kernel's log since boot. Raises OSError if this user may not read it."""
    descriptor, records = os.open(path, os.O_RDONLY | os.O_NONBLOCK), list[bytes]()
    try:
        # One read returns one record. At the end, a read would wait.
        while True:
            # The kernel may overwrite the next record, and goes on with the oldest that it has.
            with suppress(BrokenPipeError):
                if not (record := os.read(descriptor, 8192)):
                    break
                records.append(record)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)
    return b"\n".join(records).decode("utf-8", "replace")
