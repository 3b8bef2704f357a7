"""The parent of all ranks: a process that imports modules once, and forks itself for each launch.

It reads a `Call` a line from its input, and answers with the process id of the launch and the name of its status file.
That process is the launch's reaper. Its child acts as torchrun: it starts the ranks, hosts their rendezvous store,
passes SIGTERM on, and ends the other ranks when one fails.
"""

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import runpy
import signal
import socket
import sys
import traceback
from pathlib import Path
from types import FrameType

import msgspec

from m5ws.environment.observe.machine import Machine
from m5ws.launch.child import enter
from m5ws.launch.reaper import Reaper
from m5ws.records.launch import STOP_SIGNALS, open_log

_PR_SET_PDEATHSIG = 1
_GRACE_S = 5.0
"""Grace period of the other ranks after one has failed."""
_RANK = ("-m", "m5ws.training.rank")


class Call(msgspec.Struct, frozen=True):
    """A launch: the words after `python` for each rank. `ranks` is None without torchrun."""

    command: list[str]
    environment: dict[str, str]
    cwd: str
    log: str
    status: str
    ranks: int | None = None
    mount: tuple[str, str] | None = None
    processes: str = ""
    patience_s: float = 0.0


def send_signal(pid: int, number: int) -> bool:
    """Send a signal; return True if the process exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _serve(modules: list[str]) -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # Libraries print when they are imported.
    for name in modules:
        # Some versions lack a module that others import late.
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    if "deepspeed" in modules:
        _prepare_deepspeed()
    # Each first rank reads the lists of files of all distributions, and keeps them in its process.
    Machine().observe({})
    gc.collect()
    gc.freeze()  # Each engine of DeepSpeed collects garbage: frozen imports make that cheap.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # No process waits for a launch: its status is in a file.
    # Ctrl-C on a terminal reaches all its processes; the supervisor decides how the ranks end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        call = msgspec.json.decode(line, type=Call)
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

    processor = cpuinfo.get_cpu_info()
    cpuinfo.get_cpu_info = lambda: dict(processor)
    cpu_adam.ensure_cpu_adam()
    CPUAdamBuilder().load(verbose=False)
    get_accelerator().create_op_builder("ShareMemCommBuilder").load(verbose=False)


def _be_launch(call: Call) -> None:
    """Act as the reaper of a launch. Never returns."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 1
    try:
        reaper = Reaper(os.getppid(), call.processes, call.patience_s)
        reaper.begin()
        _redirect(call.log)
        if call.mount is not None:
            enter(*call.mount)
        main = _fork_torchrun(call, call.ranks) if call.ranks is not None else _fork_rank(call, {})
        status = os.waitstatus_to_exitcode(reaper.follow(main))
    except BaseException:  # noqa: BLE001  # whatever it is, no code of the parent may go on in this process
        traceback.print_exc()
    finally:
        file = Path(call.status)
        file.with_suffix(".part").write_text(str(status))
        file.with_suffix(".part").rename(file)
        os._exit(0)


def _fork_torchrun(call: Call, ranks: int) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _die_with_parent()
            status = _be_torchrun(call, ranks)
        finally:
            os._exit(status)
    return child


def _be_torchrun(call: Call, ranks: int) -> int:
    """Run the command on all ranks; return torchrun's exit status: 0, or 1 when a rank has failed."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    children = [_fork_rank(call, _place(number, ranks, port)) for number in range(ranks)]
    # Only now, since a fork copies no threads: the ranks retry until the port answers.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=False
    )

    def pass_on(number: int, _: FrameType | None) -> None:
        for child in children:
            send_signal(child, number)

    for asked in (signal.SIGTERM, signal.SIGINT):
        signal.signal(asked, pass_on)
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
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }  # fmt: skip


def _wait_for_all(ranks: list[int]) -> bool:
    """Wait for all ranks; when a rank fails, end all. Return True if one failed, and print statuses as torchrun."""
    left, statuses = set(ranks), dict[int, int]()

    def end(number: int, _: FrameType | None = None) -> None:
        for rank in left:
            print(f"Sending process {rank} closing signal {signal.Signals(number).name}", file=sys.stderr)
            send_signal(rank, signal.SIGKILL if number == signal.SIGALRM else signal.SIGTERM)

    signal.signal(signal.SIGALRM, end)
    while left:
        # All that have ended, in any order: torchrun signals none of them.
        ended = [os.wait()]
        while left - {rank for rank, _ in ended} and (other := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(other)
        left -= {rank for rank, _ in ended}
        is_first = not statuses
        statuses |= {rank: os.waitstatus_to_exitcode(status) for rank, status in ended if status != 0}
        if statuses and is_first:
            end(signal.SIGTERM)
            signal.setitimer(signal.ITIMER_REAL, _GRACE_S)
    if statuses:
        _print_statuses({ranks.index(rank): (rank, status) for rank, status in statuses.items()})
    return bool(statuses)


def _print_statuses(statuses: dict[int, tuple[int, int]]) -> None:
    """Print process ids and exit statuses of ranks as torchrun does."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    failures = {rank: ProcessFailure(rank, pid, status, "") for rank, (pid, status) in statuses.items()}
    print(ChildFailedError("the script", failures), file=sys.stderr)


def _fork_rank(call: Call, place: dict[str, str]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        for number in (*STOP_SIGNALS, signal.SIGQUIT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(call.environment | place)
        os.chdir(call.cwd)
        importlib.invalidate_caches()
        # A new process has listed the folders of imports before its script begins, and listings are reads of a run.
        importlib.util.find_spec("absent")
        status = _run(call.command)
    except BaseException:  # noqa: BLE001  # as above
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # The script may have closed it.
                stream.flush()
        os._exit(status)


def _run(words: list[str]) -> int:
    """Run `python WORDS…` in this process, and return its exit status."""
    if words[:2] == [*_RANK]:
        from m5ws.training import rank

        return rank.main(words[2:])
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
