"""Ranks as forks of a process that has imported torch: a launch takes milliseconds instead of seconds.

`ForkLauncher` is a `Launcher`. For each launch, a fork replaces torchrun (`fork_parent`), and leaves its exit status in
a file. A fork cannot change variables that Python or a library reads at its start, so `ForkParents` has one parent for
each set of such variables. tests/contract/test_launchers.py runs the same tests with both launchers.
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from m5ws.launch import child
from m5ws.launch.interface import LaunchFailed, Process
from m5ws.launch.local import LocalLauncher
from m5ws.records import determinism
from m5ws.records.environment import Determinism
from m5ws.records.launch import LaunchRequest
from tests.support.ranks import fork_parent
from tests.support.ranks.fork_parent import Call, send_signal

_POLL_S = 0.005
_READ_AT_START = (
    "ATEN_", "BLIS_", "CUDA_", "CUBLAS_", "DNNL_", "GLIBC_", "GOMP_", "HOME", "KMP_", "LANG", "LC_", "LD_", "MALLOC_",
    "MKL_", "NCCL_", "NPY_", "OMP_", "ONEDNN_", "OPENBLAS_", "PATH", "PYTHON", "TORCH_", "TZ", "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
)  # fmt: skip
"""Prefixes of variables that the interpreter, the C library or an imported library reads once."""
_READ_BY_TORCHRUN = "TORCH_ELASTIC_"
_TORCH = (
    "torch._inductor",
    "torch.distributed.fsdp",
    "m5ws.training.rank",
    "m5ws.training.backends.shard_writer",
    "m5ws.training.session.session",
)
_DEEPSPEED = (
    *_TORCH,
    "deepspeed",
    "deepspeed.runtime.zero.muon.muon_optimizer",  # DeepSpeed imports it with the first engine: all of torch.compile.
    "m5ws.training.backends.deepspeed.backend",
    "m5ws.training.backends.deepspeed.state",
)


_OF_RUNS = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
"""Variables that m5ws sets in the ranks of a run. Launches without a supervisor share the parents of runs by them."""


class ForkParent:
    """A process that has imported modules, and forks itself for each launch. Threads may share it."""

    def __init__(self, environment: Mapping[str, str], modules: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        self._process = subprocess.Popen(
            [sys.executable, fork_parent.__file__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(environment),
        )

    def has_ended(self) -> bool:
        """Return True if the process was killed, or could not import a module."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the process, and with it every launch that is still running."""
        assert self._process.stdin is not None and self._process.stdout is not None
        # The end of its input may never reach it: a process that a test forked, as a loader's worker, has the pipe too.
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()

    def start(self, call: Call) -> int:
        """Return the id of the process that represents all ranks of a launch."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(msgspec.json.encode(call) + b"\n")
            self._process.stdin.flush()
            # A process that shares this parent may have been killed before it read its answer.
            for answer in self._process.stdout:
                pid, _, status = answer.decode().rstrip("\n").partition(" ")
                if status == call.status:
                    return int(pid)
        ended = self._process.wait()
        self._errors.seek(0)
        printed = self._errors.read()[-2000:].decode(errors="replace")
        raise RuntimeError(f"the parent process of the ranks has ended with status {ended}:\n{printed}")


class ForkParents:
    """The parents of all ranks, started when they are first needed. Use it in a `with`; threads may share it.

    They also import `modules`.
    """

    def __init__(self, modules: tuple[str, ...] = ()) -> None:
        self._lock = threading.Lock()
        self._modules = modules
        self._parents: dict[object, ForkParent] = {}

    def __enter__(self) -> "ForkParents":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for parent in self._parents.values():
            parent.close()

    def parent(self, environment: Mapping[str, str], *, deepspeed: bool) -> ForkParent:
        """Return a parent that was started with these variables, as far as they are read at start."""
        read = frozenset(
            (name, value)
            for name, value in environment.items()
            if name.startswith(_READ_AT_START) and not name.startswith(_READ_BY_TORCHRUN)
        )
        key = (read, deepspeed)
        with self._lock:
            if key not in self._parents or self._parents[key].has_ended():
                self._parents[key] = ForkParent(environment, (*(_DEEPSPEED if deepspeed else _TORCH), *self._modules))
            return self._parents[key]


class ForkLauncher:
    """`Launcher`; ranks inherit `environment`."""

    def __init__(self, parents: ForkParents, environment: Mapping[str, str]) -> None:
        self._parents = parents
        self._environment = dict(environment)

    def launch(self, request: LaunchRequest) -> Process:
        """Start the ranks of a launch as `m5ws.launch.local` does. Raises LaunchFailed.

        Ranks with limits are started by `m5ws.launch.local`.
        """
        if request.access is not None:
            return LocalLauncher(self._environment).launch(request)
        Path(request.log).parent.mkdir(parents=True, exist_ok=True)
        inherited = {name: value for name, value in self._environment.items() if name not in request.unset}
        environment = inherited | request.environment
        parent = self._parents.parent(environment, deepspeed=bool(request.prepare))
        log = Path(request.log)
        if request.prepare:
            call = Call(
                list(request.prepare[1:]),
                environment,
                request.cwd,
                str(log),
                str(log.with_suffix(".prepared")),
                mount=request.mount,
            )
            if (ended := wait(_Forked(parent, call))) != 0:
                raise LaunchFailed(f"`{' '.join(request.prepare)}` ended with status {ended}")
        ranks, command = _parsed(request.argv)
        if request.processes:
            Path(request.processes).mkdir(parents=True, exist_ok=True)
        status = str(log.with_suffix(".status"))
        places = (request.mount, request.processes, request.patience_s)
        return _Forked(parent, Call(command, environment, request.cwd, str(log), status, ranks, *places))

    def can_mount(self, folder: str, path: str) -> bool:
        return child.can_mount(folder, path)


def run(
    parents: ForkParents,
    *command: str,
    directory: Path,
    log: Path | None = None,
    ranks: int | None = None,
    deepspeed: bool = False,
    timeout_s: float = 300.0,
    environment: Mapping[str, str] = {},
) -> tuple[int, str]:
    """Run the words after `python` to the end, on `ranks` ranks of torchrun if given; return status and output.

    The variables are as for a snapshot without determinism settings, and `environment`.
    """
    torchrun = () if ranks is None else ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    log = log or directory / "launcher.log"
    request = LaunchRequest(
        argv=(sys.executable, *torchrun, *command),
        cwd=str(directory),
        environment={**determinism.environment(Determinism()), **_OF_RUNS, **environment},
        log=str(log),
        prepare=(sys.executable, "-m", "m5ws.training.backends.deepspeed.cpu_adam") if deepspeed else (),
    )
    process = ForkLauncher(parents, os.environ).launch(request)
    stopper = threading.Timer(timeout_s, process.stop, (0.0,))
    stopper.start()
    try:
        return wait(process), log.read_text()
    finally:
        stopper.cancel()


def wait(process: Process) -> int:
    """Return the exit status of a launch when it has ended."""
    while (status := process.poll()) is None:
        time.sleep(_POLL_S)
    return status


def _parsed(argv: tuple[str, ...]) -> tuple[int | None, list[str]]:
    """Return torchrun's number of ranks, or None, and the words after `python` for each rank."""
    words = list(argv[1:])
    if words[:4] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]:
        return int(words[4]), words[5:]
    return None, words


class _Forked:
    """`Process` of forked ranks."""

    def __init__(self, parent: ForkParent, call: Call) -> None:
        self._status = Path(call.status)
        self._status.unlink(missing_ok=True)
        self._pid = parent.start(call)
        self._ended: int | None = None

    @property
    def pid(self) -> int:
        return self._pid

    def poll(self) -> int | None:
        if self._ended is None:
            alive = send_signal(self._pid, 0)
            if self._status.exists():
                self._ended = int(self._status.read_text())
            elif not alive:
                self._ended = -signal.SIGKILL
        return self._ended

    def facts(self) -> dict[str, str]:
        """As `Process.facts`: none."""
        return {}

    def stop(self, grace_s: float, number: signal.Signals = signal.SIGTERM) -> int:
        if (status := self.poll()) is not None:
            return status  # Another process may have its id by now.
        end_s = time.monotonic() + grace_s
        send_signal(self._pid, number)
        while (status := self.poll()) is None:
            if time.monotonic() > end_s:
                send_signal(self._pid, signal.SIGQUIT)
                end_s = math.inf
            time.sleep(_POLL_S)
        return status
