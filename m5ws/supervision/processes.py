"""A rank's process from outside: its stack by py-spy, its state in the kernel, its use of processors.

py-spy reads the memory of the process, and does not stop it. The kernel permits that to the same user, unless
kernel.yama.ptrace_scope is 2 or more.
"""

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from m5ws import secret_scan
from m5ws.records.stacks import Frame

_TIMEOUT_S = 10.0
_TRIES = 3
"""A stack that changes while it is read may be unreadable."""
_MOST_FRAMES = 100
_TICKS = os.sysconf("SC_CLK_TCK")
_MISSING = "py-spy is not installed (pip install 'm5ws[supervise]')"


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    thread_name: str | None = None
    os_thread_id: int | None = None


def read_state(pid: int) -> str:
    """Return the kernel's letter for the state of a process (proc_pid_stat(5)), or "gone"."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "gone"


def read_wchan(pid: int) -> str | None:
    """Return the function of the kernel in which a process sleeps; None if it runs or may not be read."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/wchan").read_text().strip(" \0\n") or None
    return None


def read_processor_s(pid: int) -> float:
    """Return the processor time of a process and of all processes below it, in seconds."""
    total = 0
    for each in _tree(pid):
        with suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{each}/stat").read_text(errors="replace").rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def take_stack(pid: int, work_dir: str) -> tuple[tuple[Frame, ...], str | None]:
    """Return the Python stack of a process's main thread, innermost frame first, and else the reason without it.

    Paths in `work_dir` become relative. Waits for py-spy.
    """
    program = _find_program()
    if program is None:
        return (), _MISSING
    problem: str | None = None
    for _ in range(_TRIES):
        command = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
        try:
            done = run(command, _TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            problem = f"py-spy: {error}"
            continue
        if done.returncode == 0 and (frames := _read(done.stdout, pid, work_dir)):
            return frames, None
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it printed no stack"]
        problem = f"py-spy: {secret_scan.masked(' '.join(lines))[:300]}"
    return (), problem


def run(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[bytes]:
    """Run a program that may hang in the kernel, where it cannot be killed: it is left behind after some seconds.

    Raises OSError, and TimeoutExpired.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        # `subprocess.run` would wait for its end.
        process.kill()
        raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _find_program() -> str | None:
    own = Path(sysconfig.get_path("scripts"), "py-spy")
    return str(own) if own.exists() else shutil.which("py-spy")


def _read(output: bytes, pid: int, work_dir: str) -> tuple[Frame, ...]:
    """Return the frames of the main thread in the output of py-spy."""
    try:
        threads = msgspec.json.decode(output, type=list[_Thread])
    except msgspec.DecodeError:
        return ()
    main = next((each for each in threads if each.os_thread_id == pid or each.thread_name == "MainThread"), None)
    return tuple(
        Frame(file=_shortened(frame.filename, work_dir), line=frame.line, function=frame.name)
        for frame in (main.frames if main is not None else ())[:_MOST_FRAMES]
    )


def _shortened(file: str, work_dir: str) -> str:
    return file.removeprefix(f"{work_dir.rstrip('/')}/") if work_dir else file


def _tree(pid: int) -> Iterator[int]:
    """Yield a process and the processes below it."""
    yield pid
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in file.read_text().split():
                yield from _tree(int(child))
