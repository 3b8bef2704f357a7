"""Ranks as forks of a process that has imported torch: a launch takes milliseconds instead of seconds.

`ForkLauncher` is a `Launcher`. For each launch, a fork replaces torchrun. It starts the ranks, hosts their rendezvous
store, passes SIGTERM on, ends the other ranks when one fails, and leaves its exit status in a file. A fork cannot
change variables that Python or a library reads at its start, so `ForkParents` has one parent for each set of such
variables. tests/contract/test_launchers.py runs the same tests with this launcher and the real one.
"""

import ctypes
import gc
import importlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType

import msgspec

from m5ws.launch import mounts
from m5ws.launch.interface import Process
from m5ws.launch.local import LaunchFailed
from m5ws.records import determinism
from m5ws.records.environment import Determinism
from m5ws.records.launch import LaunchRequest, open_log

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.005
_GRACE_S = 5.0
"""Grace period of the other ranks after one has failed."""
_READ_AT_START = (
    "ATEN_", "BLIS_", "CUDA_", "CUBLAS_", "DNNL_", "GLIBC_", "GOMP_", "HOME", "KMP_", "LANG", "LC_", "LD_", "MALLOC_",
    "MKL_", "NCCL_", "NPY_", "OMP_", "ONEDNN_", "OPENBLAS_", "PATH", "PYTHON", "TORCH_", "TZ", "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
)  # fmt: skip
"""Prefixes of variables that the interpreter, the C library or an imported library reads once."""
_READ_BY_TORCHRUN = "TORCH_ELASTIC_"
_RANK = ("-m", "m5ws.training.rank")
_TORCH = (
    "torch._inductor",
    "torch.distributed.fsdp",
    "m5ws.training.rank",
    "m5ws.training.backends.dcp",
    "m5ws.training.loop.session",
)
_DEEPSPEED = (
    *_TORCH,
    "deepspeed",
    "deepspeed.runtime.zero.muon.muon_optimizer",  # DeepSpeed imports it with the first engine: all of torch.compile.
    "m5ws.training.backends.deepspeed.backend",
    "m5ws.training.backends.deepspeed.state",
)


class _Call(msgspec.Struct, frozen=True):
    """A launch: the words after `python` for each rank. `ranks` is None without torchrun."""

    command: list[str]
    environment: dict[str, str]
    cwd: str
    log: str
    status: str
    ranks: int | None = None
    mount: tuple[str, str] | None = None


class ForkParent:
    """A process that has imported modules, and forks itself for each launch. Threads may share it."""

    def __init__(self, environment: Mapping[str, str], modules: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, __file__, *modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(environment)
        )

    def close(self) -> None:
        """End the process, and with it every launch that is still running."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def start(self, call: _Call) -> int:
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
        raise RuntimeError("the parent process of the ranks has ended")


class ForkParents:
    """The parents of all ranks, started when they are first needed. Use it in a `with`; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
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
            if key not in self._parents:
                self._parents[key] = ForkParent(environment, _DEEPSPEED if deepspeed else _TORCH)
            return self._parents[key]


class ForkLauncher:
    """`Launcher`; ranks inherit `environment`."""

    def __init__(self, parents: ForkParents, environment: Mapping[str, str]) -> None:
        self._parents = parents
        self._environment = dict(environment)

    def launch(self, request: LaunchRequest) -> Process:
        """Start the ranks of a launch as `m5ws.launch.local` does. Raises LaunchFailed."""
        Path(request.log).parent.mkdir(parents=True, exist_ok=True)
        inherited = {name: value for name, value in self._environment.items() if name not in request.unset}
        environment = inherited | request.environment
        parent = self._parents.parent(environment, deepspeed=bool(request.prepare))
        log = Path(request.log)
        if request.prepare:
            call = _Call(
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
        return _Forked(
            parent,
            _Call(command, environment, request.cwd, str(log), str(log.with_suffix(".status")), ranks, request.mount),
        )

    def can_mount(self, folder: str, path: str) -> bool:
        return mounts.possible(folder, path)


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

    The variables are those of a snapshot without determinism settings, and `environment`.
    """
    torchrun = () if ranks is None else ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    log = log or directory / "launcher.log"
    request = LaunchRequest(
        argv=(sys.executable, *torchrun, *command),
        cwd=str(directory),
        environment={**determinism.environment(Determinism()), **environment},
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

    def __init__(self, parent: ForkParent, call: _Call) -> None:
        self._status = Path(call.status)
        self._status.unlink(missing_ok=True)
        self._pid = parent.start(call)

    @property
    def pid(self) -> int:
        return self._pid

    def poll(self) -> int | None:
        alive = _signal(self._pid, 0)
        if self._status.exists():
            return int(self._status.read_text())
        return None if alive else -signal.SIGKILL

    def stop(self, grace_s: float) -> int:
        end_s = time.monotonic() + grace_s
        _signal(self._pid, signal.SIGTERM)
        while (status := self.poll()) is None:
            if time.monotonic() > end_s:
                _signal(self._pid, signal.SIGKILL)
            time.sleep(_POLL_S)
        return status


def _signal(pid: int, number: int) -> bool:
    """Send a signal; return True if the process exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


# --- in the parent of all ranks -----------------------------------------------------------------------------------


def _serve(modules: list[str]) -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # Libraries print when they are imported.
    for name in modules:
        importlib.import_module(name)
    if "deepspeed" in modules:
        _prepare_deepspeed()
    gc.collect()
    gc.freeze()  # Each engine of DeepSpeed collects garbage: frozen imports make that cheap.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # No process waits for a launch: its status is in a file.
    # Ctrl-C on a terminal reaches all its processes; the supervisor decides how the ranks end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        call = msgspec.json.decode(line, type=_Call)
        child = os.fork()
        if child == 0:
            _be_launch(call)
        os.write(answers, f"{child} {call.status}\n".encode())


def _prepare_deepspeed() -> None:
    """Do once the work of DeepSpeed in every rank: name the processor, which takes a second, and load operators."""
    import cpuinfo  # type: ignore[import-untyped]
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops.op_builder import CPUAdamBuilder

    from m5ws.training.backends.deepspeed import cpu_adam
    from m5ws.training.runtime import isolation

    isolation.activate()  # As in a launch: another `ninja` would compile everything again.
    processor = cpuinfo.get_cpu_info()
    cpuinfo.get_cpu_info = lambda: dict(processor)
    cpu_adam.ensure_cpu_adam()
    CPUAdamBuilder().load(verbose=False)
    get_accelerator().create_op_builder("ShareMemCommBuilder").load(verbose=False)


def _be_launch(call: _Call) -> None:
    """Act as torchrun for a launch. Never returns."""
    os.setsid()
    _die_with_parent()
    for number in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.default_int_handler)
    status = 1
    try:
        _redirect(call.log)
        if call.mount is not None:
            mounts.enter(*call.mount)
        status = _be_torchrun(call, call.ranks) if call.ranks is not None else _be_python(call)
    except BaseException:  # noqa: BLE001  # whatever it is, no code of the parent may go on in this process
        traceback.print_exc()
    finally:
        file = Path(call.status)
        file.with_suffix(".part").write_text(str(status))
        file.with_suffix(".part").rename(file)
        os._exit(0)


def _be_python(call: _Call) -> int:
    """Run the command in one process without torchrun's variables, and return its exit status."""
    rank = _fork_rank(call, {})
    signal.signal(signal.SIGTERM, lambda number, _: _signal(rank, number) and None)
    return os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])


def _be_torchrun(call: _Call, ranks: int) -> int:
    """Run the command on all ranks; return torchrun's exit status: 0, or 1 when a rank has failed."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    children = [_fork_rank(call, _place(number, ranks, port)) for number in range(ranks)]
    # Only now, since a fork copies no threads: the ranks retry until the port answers.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=True
    )

    def pass_on(number: int, _: FrameType | None) -> None:
        for child in children:
            _signal(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    failed = _wait_for_all(children)
    del store
    return int(failed)


def _place(number: int, ranks: int, port: int) -> dict[str, str]:
    """Return torchrun's variables of a rank."""
    here, world = str(number), str(ranks)
    return {
        "RANK": here, "LOCAL_RANK": here, "ROLE_RANK": here, "GROUP_RANK": "0", "ROLE_NAME": "default",
        "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "ROLE_WORLD_SIZE": world, "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": "forked",
    }  # fmt: skip


def _wait_for_all(ranks: list[int]) -> bool:
    """Wait for all ranks; when one fails, end the others. Return True if one failed."""
    left, failed = set(ranks), False

    def end(number: int, _: FrameType | None = None) -> None:
        for rank in left:
            _signal(rank, signal.SIGKILL if number == signal.SIGALRM else signal.SIGTERM)

    signal.signal(signal.SIGALRM, end)
    while left:
        rank, status = os.wait()
        left.discard(rank)
        if status != 0 and not failed:
            failed = True
            end(signal.SIGTERM)
            signal.setitimer(signal.ITIMER_REAL, _GRACE_S)
    return failed


def _fork_rank(call: _Call, place: dict[str, str]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.environ.clear()
        os.environ.update(call.environment | place)
        os.chdir(call.cwd)
        importlib.invalidate_caches()
        status = _run(call.command)
    except BaseException:  # noqa: BLE001  # as above
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(words: list[str]) -> int:
    """Run `python WORDS…` in this process, and return its exit status."""
    if words[:3] == [*_RANK, "--"]:
        from m5ws.training import rank

        return rank.main(words[3:])
    is_module = words[0] == "-m"
    sys.argv = words[is_module:]
    try:
        if is_module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _redirect(log: str) -> None:
    descriptor = open_log(log)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _die_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    _serve(sys.argv[1:])
