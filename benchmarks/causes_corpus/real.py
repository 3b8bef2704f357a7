"""Runs scripts that fail, and keeps the ends of their logs.

Each process of a script is a fork of this process, which has imported torch once. The tracebacks begin at the script.
"""

import contextlib
import ctypes
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import NamedTuple

WORK = Path(tempfile.gettempdir()) / f"m5ws-corpus-{os.getpid()}"
"""Scratch space of scripts."""
_LIMIT_S = 20
_CLONE_NEWNS = 0x20000
_LAST_LINES = 60
_OWN_FRAME = re.compile(r'.*File "[^"]*causes_corpus/\w+\.py".*\n(?:(?!.*File ").*    \S.*\n)*')
"""A frame of this program in a stack, with its lines of code."""


class Ended(NamedTuple):
    """The log of a process, and its exit status, negative for a signal. The rank of a launcher is None."""

    rank: int | None
    text: str
    status: int


def _limit(need: str) -> None:
    """Limit the memory, the files or the disks of this process, as its script needs."""
    if need == "memory":
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    elif need == "files":
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    elif need in {"shm", "disk"}:
        if ctypes.CDLL(None).unshare(_CLONE_NEWNS) != 0:
            raise OSError("no new mount namespace")
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        where = "/dev/shm" if need == "shm" else str(WORK / "small")  # noqa: S108  # this is its mount point
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", where], check=True)


def _execute(script: Path) -> int:
    """Run a script as Python runs it, and return its exit status."""
    main = types.ModuleType("__main__")
    main.__file__ = str(script)
    sys.modules["__main__"] = main
    try:
        exec(compile(script.read_text(), str(script), "exec"), main.__dict__)  # noqa: S102  # the script is the case
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001  # the traceback is the case
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != str(script):
            frames = frames.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _child(script: Path, log: Path, environment: dict[str, str], need: str) -> None:
    os.setsid()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.update(environment)
    os.chdir(script.parent)
    sys.argv[:] = [str(script)]
    _limit(need)
    status = _execute(script)
    sys.stdout.flush()
    sys.stderr.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _wait(pids: list[int]) -> list[int]:
    """Return the exit statuses of processes, and kill their children. A process that hangs is killed."""
    statuses: dict[int, int] = {}
    until_s = time.monotonic() + _LIMIT_S
    while len(statuses) < len(pids):
        for pid in pids:
            if pid not in statuses and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                statuses[pid] = os.waitstatus_to_exitcode(ended[1])
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            elif pid not in statuses and time.monotonic() > until_s:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return [statuses[pid] for pid in pids]


def _neutral(text: str, script: Path, home: str) -> str:
    """Return the end of a log without the paths and the name of this machine."""
    text = text.replace(str(script.parent), home).replace(sys.prefix, "/opt/venv").replace(sys.base_prefix, "/usr")
    text = text.replace(str(WORK), "/local").replace(socket.gethostname(), "node7")
    text = _OWN_FRAME.sub("", text)
    text = re.sub(r"[^\x20-\x7e\n\t\r\u00a0-\uffff]", "", text)
    return "\n".join(text.rstrip("\n").split("\n")[-_LAST_LINES:])


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def run(script: Path, ranks: int, need: str, environment: dict[str, str], home: str) -> list[Ended]:
    """Run a script in a number of processes of one group, and return their ends."""
    logs = [script.parent / f"rank-{rank}.log" for rank in range(ranks)]
    shared = environment | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    pids = []
    for rank, log in enumerate(logs):
        pid = os.fork()
        if pid == 0:
            try:
                _child(
                    script,
                    log,
                    shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else environment,
                    need,
                )
            finally:
                os._exit(99)
        pids.append(pid)
    statuses = _wait(pids)
    return [
        Ended(rank, _neutral(log.read_text(errors="replace"), script, home), status)
        for rank, (log, status) in enumerate(zip(logs, statuses, strict=True))
    ]


def run_torchrun(script: Path, ranks: int, environment: dict[str, str], home: str) -> list[Ended]:
    """Run a script by torchrun, and return the ends of its ranks and of torchrun."""
    logs = script.parent / "logs"
    options = [f"--nproc-per-node={ranks}", f"--master-port={free_port()}", f"--log-dir={logs}", "--redirects=3"]
    process = subprocess.run(
        [
            "timeout",
            "--signal=KILL",
            str(6 * _LIMIT_S),
            sys.executable,
            "-m",
            "torch.distributed.run",
            *options,
            str(script),
        ],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        cwd=script.parent,
        check=False,
    )
    ended = [Ended(None, _neutral(process.stderr, script, home), process.returncode)]
    for rank in range(ranks):
        texts = [
            path.read_text(errors="replace") for path in sorted(logs.glob(f"*/attempt_0/{rank}/std*.log"), reverse=True)
        ]
        ended.append(Ended(rank, _neutral("".join(texts), script, home), 1))
    return ended
