"""A server of MLflow on this machine."""

import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.network import ports
from tests.support.waiting import wait_for


@contextmanager
def running(
    argv: Callable[[int], Sequence[str]], folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Start a server by its command on a free port, and yield the port when it answers. Its log is in `folder`."""
    port = ports.free()
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(argv(port), env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        wait_for(lambda: process.poll() is not None or _is_up(port))
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        yield port
    finally:
        process.terminate()
        process.wait()


def _is_up(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except OSError:
        return False
