"""Runs m5ws commands, one after another, in a process limited to a GiB of memory.

A line of input has the arguments, as a JSON list. A line of output has the exit status, stdout and stderr, as a JSON
object.
"""

import io
import json
import resource
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from m5ws.cli import main
from m5ws.repository.files import materialise  # noqa: F401
from m5ws.repository.fsck import fsck  # noqa: F401
from m5ws.repository.gc import execute  # noqa: F401  imported before memory is measured
from m5ws.repository.transfer import transfer  # noqa: F401  imported before memory is measured
from m5ws.runs import listing  # noqa: F401  imported before memory is measured


def limit(more_bytes: int) -> None:
    own = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize"))
    size = int(own.split()[1]) * 1024 + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def run(arguments: list[str]) -> dict[str, object]:
    # As in a terminal: text that is not UTF-8 is an error on stdout, and escaped on stderr.
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    with redirect_stdout(out), redirect_stderr(err):
        status = main(arguments)
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return {"status": status, "out": texts[0], "err": texts[1]}


limit(2**30)
for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), flush=True)
