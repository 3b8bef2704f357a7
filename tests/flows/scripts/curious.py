"""Reads files and hosts that nobody pinned, ignores each refusal but the last, and prints the results as JSON."""

import contextlib
import glob
import json
import multiprocessing
import os
import socket
import tempfile
from pathlib import Path

from huggingface_hub import hf_hub_download
from tokenizers import Tokenizer

shared = Path(os.environ["SHARED"])


def read(name: str) -> None:
    with contextlib.suppress(OSError):
        (shared / name).read_text()


def download() -> str:
    try:
        return hf_hub_download("gpt2", "tokenizer.json")
    except Exception as error:  # noqa: BLE001
        return type(error).__name__


def connect(host: str) -> str:
    try:
        socket.create_connection((host, 9), timeout=5)
    except OSError as error:
        return type(error).__name__
    return "connected"


worker = multiprocessing.get_context("fork").Process(target=read, args=("by-a-worker",))
worker.start()
worker.join()
read("by-open")
read("missing")
with contextlib.suppress(PermissionError):
    (shared / "written").write_text("")
results = {
    "glob": glob.glob(f"{shared}/*"),
    "hub": download(),
    "name": connect("huggingface.co"),
    "address": connect("192.0.2.99"),
    "descriptors": [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")],
    "temporary": tempfile.gettempdir(),
}
print(json.dumps(results))
Path(tempfile.mkdtemp(), "file").write_text("x")
Tokenizer.from_file(str(shared / "tokenizer.json"))
