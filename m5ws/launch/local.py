"""Starts an attempt on this machine: torchrun as a subprocess, for FSDP and for DeepSpeed alike.

The processes never outlive their supervisor: the kernel signals torchrun when its parent dies, and each rank when
torchrun dies (training/rank.py).
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from m5ws.errors import M5Error
from m5ws.launch import child
from m5ws.launch.interface import Process
from m5ws.records.launch import LaunchRequest, open_log


class LaunchFailed(M5Error):
    """The processes could not be started."""


class LocalLauncher:
    """`Launcher` on this machine; the processes inherit `environment`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    def launch(self, request: LaunchRequest) -> Process:
        """Run `request.prepare` to its end, then start `request.argv` and return. Raises LaunchFailed.

        Inheritable file descriptors are inherited. A lock that the caller holds by one is therefore held as long as
        torchrun runs.
        """
        Path(request.log).parent.mkdir(parents=True, exist_ok=True)
        inherited = {name: value for name, value in self._environment.items() if name not in request.unset}
        environment = inherited | request.environment
        with open(request.log, "ab", opener=open_log) as log:
            if request.prepare:
                self._prepare(request, environment, log.fileno())
            try:
                process = subprocess.Popen(
                    child.command(request.argv, mount=request.mount, dies_with_parent=True),
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
            child.command(request.prepare, mount=request.mount, dies_with_parent=False),
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


class LocalProcess:
    """`Process` of a launched torchrun."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self, grace_s: float, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal to the ranks; after `grace_s` seconds kill torchrun, and with it the ranks.

        torchrun gets no signal: it would kill the ranks after 30 s, in the middle of a last checkpoint. It ends when
        they end.
        """
        signalled = [_signalled(pid, number) for pid in self._ranks()]
        if not any(signalled):
            self._process.send_signal(number)
        try:
            return self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _ranks(self) -> list[int]:
        """Return the ranks, if the kernel lists them: torchrun's children, or without torchrun the process itself.

        The workers of a rank's loaders are no ranks.
        """
        if _is_rank(str(self.pid)):
            return [self.pid]
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in children.split() if _is_rank(pid)]


def _is_rank(pid: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"m5ws.training.rank" in words and b"torch.distributed.run" not in words


def _signalled(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
