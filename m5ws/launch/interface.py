"""Interfaces of a launcher and of the processes that it starts."""

import signal
from collections.abc import Mapping
from typing import Protocol

from m5ws.errors import M5Error
from m5ws.records.launch import LaunchRequest

LEFT_PROCESSES = "left"
"""Name of the file, in the folder of processes, with ids and command lines of processes that outlived the main process.
"""


class LaunchFailed(M5Error):
    """The processes of an attempt could not be started, or ended before the script began."""


class Process(Protocol):
    """A launched attempt."""

    @property
    def pid(self) -> int:
        """The process id that represents the whole attempt."""

    def poll(self) -> int | None:
        """Return the exit status, or None while any of its processes runs."""

    def stop(self, grace_s: float, number: signal.Signals = signal.SIGTERM) -> int:
        """Request the end by SIGTERM or SIGINT, kill all processes after `grace_s` seconds, and return the exit status.

        SIGINT ends the ranks as Ctrl-C in a terminal does. No process of the launch is left.
        """

    def facts(self) -> Mapping[str, str | None]:
        """Return facts about the environment of the processes that only their launcher can know.

        A fact replaces the fact of the same name that a rank observes.
        """


class Launcher(Protocol):
    """Starts an attempt from a rendered request."""

    def launch(self, request: LaunchRequest) -> Process:
        """Start the processes and return at once. Raises LaunchFailed."""

    def can_mount(self, folder: str, path: str) -> bool:
        """Return True if `LaunchRequest.mount` may contain this folder and path."""
