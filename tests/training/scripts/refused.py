"""Try the hosts and files of the arguments with the hook of a rank, in limits; print the results and the notes.

Arguments: JSON with `context`, `hosts` to connect to, `literals` and `files`.
"""

import json
import socket
import sys
from pathlib import Path

from m5ws.records import codec
from m5ws.records.launch import Context
from m5ws.training.runtime import refusals


def connect(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=10).close()
    except OSError as error:
        return type(error).__name__
    return "connected"


def read_in_c(path: str) -> None:
    raise RuntimeError("a library has no path")


if __name__ == "__main__":
    orders = json.loads(sys.argv[1])
    context = codec.decode(Path(orders["context"]).read_bytes(), Context, "context")
    watching = refusals.Refusals(context)
    watching.watch()
    connected = [connect(host, orders["port"]) for host in orders["hosts"]]
    named = orders["file"]
    try:
        read_in_c(named)
    except RuntimeError as error:
        watching.search(error)
    notes = Path(context.spool_dir) / "refused"
    print(json.dumps([connected, notes.read_text().splitlines() if notes.exists() else []]))
