"""Environments with frameworks, on top of the tests' own, and m5ws in them with ranks that are forks.

Also an image in a storage of Podman, and a server of MLflow, each for several modules.
"""

import fcntl
import json
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
import pytest

import m5ws
from m5ws.tracking.mlflow.tracker import Mlflow
from tests.conftest import loud_skip
from tests.support.machine import mlflow_server, podman

_HERE = Path(__file__).parent

Versions = Literal[
    "frameworks",
    "previous_frameworks",
    "transcripts",
    "torchtune",
    "previous_torchtune",
    "torchtitan",
    "previous_torchtitan",
    "triton",
]
"""The file with the versions of all packages."""

_BELOW: dict[Versions, Versions] = {
    "previous_frameworks": "frameworks",
    "transcripts": "frameworks",
    "previous_torchtune": "torchtune",
    "torchtitan": "frameworks",
    "previous_torchtitan": "torchtitan",
}
"""The environment on top of which another environment is made."""


_MODULES: dict[Versions, tuple[str, ...]] = {
    "frameworks": ("torch.utils.tensorboard", "torchmetrics", "transformers.modeling_utils"),
    "torchtune": ("datasets", "torchdata", "torchao"),
    "torchtitan": ("torch.utils.tensorboard", "datasets", "torchdata", "torch.nn.attention.flex_attention"),
}
"""Modules that frameworks import, without the modules that m5ws or a script changes."""
_LIMIT_S = 600.0

M5ws = Callable[..., "subprocess.CompletedProcess[str]"]
"""Runs `m5ws` with the given words."""


@pytest.fixture(scope="module")
def forked(interpreter: Callable[[Versions], Path]) -> Iterator[Callable[[Versions], M5ws]]:
    """`m5ws` in an environment, as one process whose ranks are forks of a process that has imported torch."""
    with ExitStack() as stack:

        @cache
        def start(versions: Versions) -> M5ws:
            known = versions
            while known not in _MODULES:
                known = _BELOW[known]
            script = _HERE / "scripts" / "forked_m5ws.py"
            command = [str(interpreter(versions)), "-P", str(script), *_MODULES[known]]
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            assert process.stdin is not None and process.stdout is not None
            requests, answers = process.stdin, process.stdout
            stack.callback(requests.close)

            def m5ws(*words: str) -> "subprocess.CompletedProcess[str]":
                stopper = threading.Timer(_LIMIT_S, process.kill)
                stopper.start()
                try:
                    requests.write(json.dumps(words) + "\n")
                    requests.flush()
                    status, output, error = json.loads(answers.readline())
                finally:
                    stopper.cancel()
                return subprocess.CompletedProcess(words, status, output, error)

            return m5ws

        yield start


@pytest.fixture(scope="session")
def interpreter(session_directory: Path) -> Callable[[Versions], Path]:
    """The interpreter of an environment with these packages, on top of the tests' own and `_BELOW`.

    All workers share an environment. It has no pip of its own: `python -m pip` runs pip of the tests' environment.
    """

    @cache
    def make(versions: Versions) -> Path:
        below = make(_BELOW[versions]) if versions in _BELOW else None
        place = session_directory / versions
        with place.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (made := place / "complete").exists():
                made.write_text(_install(place, versions, below))
        if failure := made.read_text():
            loud_skip(f"pip could not install {versions}.txt: {failure}")
        return place / "bin" / "python"

    return make


def _install(place: Path, versions: Versions, below: Path | None) -> str:
    """Make an environment with packages; return the end of pip's error, or "" if it had none."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True, capture_output=True)
    site = Path("lib", f"python{sysconfig.get_python_version()}", "site-packages")
    paths: list[str | Path] = [sysconfig.get_path("purelib"), Path(m5ws.__file__).parent.parent]
    if below is not None:
        # Python reads the .pth files of an environment's own folder alone, and not the files of the folders below.
        folder = below.parents[1] / site
        paths = [folder, *(folder / "below.pth").read_text().splitlines()]
    (place / site / "below.pth").write_text("".join(f"{path}\n" for path in paths))
    command = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps"]
    done = subprocess.run([*command, "--requirement", str(_HERE / f"{versions}.txt")], capture_output=True, text=True)
    return done.stderr[-300:] if done.returncode else ""


@pytest.fixture(scope="session")
def podman_storage() -> Iterator[podman.Storage]:
    """A storage of Podman with an image that has torch and m5ws, which takes 20 CPU seconds and 1 GB.

    One worker runs all modules that use this fixture (tests/conftest.py).
    """
    with podman.usable() as variables:
        files = podman.files_of("torch", "numpy", "pyyaml", "tokenizers", "m5ws")
        yield podman.Storage(variables, podman.load(variables, "localhost/m5ws/train:1", files))


class MlflowServer(msgspec.Struct, frozen=True):
    """A server of MLflow on a database of SQLite, both without a password. Each module has an experiment of its own."""

    database: str
    port: int


@pytest.fixture(scope="session")
def ui_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """The server that `m5ws ui` starts. One worker runs all modules that use it (tests/conftest.py)."""
    folder = tmp_path_factory.mktemp("ui-server")
    own = Mlflow(f"sqlite:///{folder}/mlflow.db", "own", "", folder / "runs")
    own.migrate()
    with mlflow_server.running(own.ui_argv, folder) as port:
        yield MlflowServer(own.tracking_uri, port)
