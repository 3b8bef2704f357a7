"""Try the hosts and files of the arguments with the hook of a rank, in limits; print the results and the notes.

Arguments: JSON with `context`, the `allowed` host, `hosts` to connect to, and a `file`.
"""

import json
import socket
import sys
from pathlib import Path

from m5ws.launch import network, read_notes
from m5ws.records import codec
from m5ws.records.launch import Context
from m5ws.training.runtime.reads import note_reads


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
    # The one address that answers here stands for another machine.
    network.own_addresses = lambda: iter(())
    context = codec.decode(Path(orders["context"]).read_bytes(), Context, "context")
    watching = note_reads(context, {"MASTER_ADDR": orders["allowed"]})
    connected = [connect(host, orders["port"]) for host in orders["hosts"]]
    named = orders["file"]
    try:
        read_in_c(named)
    except RuntimeError as error:
        watching.search(error)
    notes = read_notes.NoteReader(Path(context.spool_dir) / read_notes.NAME)
    print(json.dumps([connected, list(notes.read())]))
