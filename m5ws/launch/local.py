"""Starts an attempt on this machine, below a process that ends with all of them (reaper.py).

The processes never outlive their supervisor: the kernel signals that process when the supervisor dies, and each rank
when its launcher dies (training/rank.py).
"""

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from m5ws.launch import child, landlock, reaper
from m5ws.launch.interface import LaunchFailed, Process
from m5ws.records.launch import LaunchRequest, open_log

_KILLED_S = 20.0
"""The longest wait for the end of killed processes."""


class LocalLauncher:
    """`Launcher` on this machine; the processes inherit `environment`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    def launch(self, request: LaunchRequest) -> Process:
        """Run `request.prepare` to its end, then start `request.argv` and return. Raises LaunchFailed.

        Inheritable file descriptors are inherited. A lock that the caller holds by one is therefore held as long as
        the processes run.
        """
        Path(request.log).parent.mkdir(parents=True, exist_ok=True)
        argv = _limited(request)
        if request.processes:
            Path(request.processes).mkdir(parents=True, exist_ok=True)
        inherited = {name: value for name, value in self._environment.items() if name not in request.unset}
        environment = inherited | request.environment
        with open(request.log, "ab", opener=open_log) as log:
            if request.prepare:
                self._prepare(request, environment, log.fileno())
            try:
                process = subprocess.Popen(
                    reaper.command(argv, request.mount, request.processes, request.patience_s),
                    cwd=request.cwd,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    close_fds=False,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise LaunchFailed(f"{sys.executable} could not be started: {error}") from error
        return LocalProcess(process)

    def can_mount(self, folder: str, path: str) -> bool:
        """As `Launcher.can_mount`; true with the rights of root, outside of containers."""
        return child.can_mount(folder, path)

    def _prepare(self, request: LaunchRequest, environment: dict[str, str], log: int) -> None:
        done = subprocess.run(
            child.command(request.prepare, request.mount),
            cwd=request.cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        )
        if done.returncode != 0:
            raise LaunchFailed(
                f"`{' '.join(request.prepare)}` ended with status {done.returncode}", hint=f"Its output: {request.log}"
            )


def _limited(request: LaunchRequest) -> Sequence[str]:
    """Return the command of a request, which limits itself to the places of `access`. Raises LaunchFailed."""
    if request.access is None:
        return request.argv
    if (version := landlock.abi()) < landlock.LEAST_ABI:
        problem = f"needs ABI {landlock.LEAST_ABI} of the kernel's Landlock, and the kernel has ABI {version}"
        hint = 'Use Linux 5.19 or newer with `landlock` in its boot parameter lsm=, or set [run] inputs = "recorded".'
        raise LaunchFailed(f'[run] inputs = "pinned" {problem}', hint=hint)
    return landlock.command(request.argv, request.access.read, request.access.write)


class LocalProcess:
    """`Process` of a launch: its reaper, which ends when all other processes have ended."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self, grace_s: float, number: signal.Signals = signal.SIGTERM) -> int:
        """As `Process.stop`. torchrun gets no signal: it would kill the ranks in the middle of a last checkpoint."""
        for request, timeout_s in ((number, grace_s), (signal.SIGQUIT, _KILLED_S), (signal.SIGKILL, None)):
            self._process.send_signal(request)
            try:
                return self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError("a wait without a limit has ended")

    def facts(self) -> dict[str, str]:
        """As `Process.facts`: none."""
        return {}
