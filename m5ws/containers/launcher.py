"""Launches in the image of a request, by Podman or Docker.

The engine's command runs below the reaper of `inner`, and passes signals to a second reaper, the first process of the
container. The name of the container is in a file beside the log before the container exists. So its removal needs no
process of the launch: the next m5ws command removes a container that a kill has left.
"""

import logging
import re
import secrets
import signal
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from m5ws.containers import command, engines
from m5ws.containers.command import Container
from m5ws.containers.engines import DOCKER, PODMAN, Engine
from m5ws.launch.interface import Launcher, Process
from m5ws.records.launch import STOP_SIGNALS, LaunchRequest

_log = logging.getLogger(__name__)
_LEFT = "container"
"""Name of the file beside the log with the engine and the name of the container, until the container is removed."""
_NAME = re.compile(rf"({PODMAN}|{DOCKER}) (m5ws-[0-9a-f]{{16}})")
_OF_HOST = ("LD_LIBRARY_PATH", "LD_PRELOAD")
"""Variables that name files of this machine. An image has its own."""


class ContainerLauncher:
    """`Launcher` that has `inner` start the engine of `environment` if a request names an image.

    Processes in an image get the variables of `environment` that match the patterns `names`. Their home directories,
    one for each image, are in the folder `homes`.
    """

    def __init__(self, inner: Launcher, environment: Mapping[str, str], names: Sequence[str], homes: Path) -> None:
        self._inner, self._environment = inner, environment
        self._names, self._homes = names, homes

    def launch(self, request: LaunchRequest) -> Process:
        """As `Launcher.launch`. Raises NoEngine, EngineError."""
        if request.image is None:
            return self._inner.launch(request)
        engine = engines.answering(self._environment)
        engines.digest(engine, request.image)
        environment = self._variables(request)
        container = Container(
            image=request.image,
            name=f"m5ws-{secrets.token_hex(8)}",
            cwd=request.cwd,
            folders=(*request.folders, self._home(request.image)),
            mount=request.mount,
        )
        mark = Path(request.log).with_name(_LEFT)
        for folder in (*map(Path, container.folders), mark.parent, Path(request.processes)):
            folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(f"{engine.name} {container.name}")
        host = self._environment
        prepared = msgspec.structs.replace(container, name=f"{container.name}-prepare")
        prepare = command.argv(engine, prepared, environment, host, request.prepare) if request.prepare else ()
        started = msgspec.structs.replace(
            request,
            argv=tuple(command.argv(engine, container, environment, host, request.argv, request.processes)),
            prepare=tuple(prepare),
            environment={name: value for name, value in environment.items() if name not in host},
            unset=(),
            mount=None,
            processes="",
        )
        return ContainerProcess(self._inner.launch(started), engine, container, mark)

    def can_mount(self, folder: str, path: str) -> bool:
        """As `Launcher.can_mount`."""
        return self._inner.can_mount(folder, path)

    def _home(self, image: str) -> str:
        """Return the home directory of processes in an image, where libraries keep compiled code."""
        return str(self._homes / image.rpartition(":")[2][:24])

    def _variables(self, request: LaunchRequest) -> dict[str, str]:
        """Return the variables of the processes: a home, the matching variables of the host, and the request's."""
        matching = {
            name: value
            for name, value in self._environment.items()
            if any(fnmatchcase(name, pattern) for pattern in self._names) and name not in (*_OF_HOST, *request.unset)
        }
        own = {"HOME": self._home(request.image or ""), "USER": "m5ws"}
        return own | matching | request.environment


class ContainerProcess:
    """`Process` of a launch in a container, which is removed when `process`, the engine's command, has ended."""

    def __init__(self, process: Process, engine: Engine, container: Container, mark: Path) -> None:
        self._process, self._engine = process, engine
        self._container, self._mark = container, mark

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """As `Process.poll`."""
        status = self._process.poll()
        return self._ended(status) if status is not None else None

    def stop(self, grace_s: float, number: signal.Signals = signal.SIGTERM) -> int:
        """As `Process.stop`."""
        return self._ended(self._process.stop(grace_s, number))

    def facts(self) -> dict[str, str | None]:
        """As `Process.facts`: the image by the digest that the engine lists for the started container.

        Raises EngineError.
        """
        digest = engines.started_digest(self._engine, self._container.name)
        source = f"{self._engine.name} {self._engine.version}"
        return {
            "container": self._engine.name,
            "container.source": source,
            "container.image": f"{self._container.image.partition('@')[0]}@{digest}",
            "container.image.source": source,
            # A variable in the image may claim another image.
            "container.image.unverified": None,
        }

    def _ended(self, status: int) -> int:
        """Remove the container, and return the status of its first process in the form of a `Process`.

        The engine's command ends with 128 and the number of a signal. Ranks end so by themselves after a stop.
        """
        if self._mark.exists():
            _remove(self._engine, self._container.name, self._mark)
        is_killed = status > 128 and status - 128 not in STOP_SIGNALS
        return 128 - status if is_killed and status - 128 in set(signal.Signals) else status


def remove_left(log_dir: Path, environment: Mapping[str, str]) -> None:
    """Remove the container that a killed launch has left, by the mark in its folder of logs. No process may use it."""
    mark = log_dir / _LEFT
    match = _NAME.fullmatch(mark.read_text(errors="replace")) if mark.exists() else None
    if match is None:
        return
    engine = engines.answers(environment).get(match[1])
    if isinstance(engine, Engine):
        _remove(engine, match[2], mark)
    else:
        _log.warning("container %s may be left: %s does not answer: %s", match[2], match[1], engine or "not on PATH")


def _remove(engine: Engine, name: str, mark: Path) -> None:
    """Remove a container, and then its mark. A container that the engine has removed already is no error."""
    now = ("--ignore", "--time", "0") if engine.name == PODMAN else ()
    try:
        left = engines.ask(engine, "ps", "--all", "--quiet", "--filter", f"name={name}").split()
        if left:
            engines.ask(engine, "rm", "--force", "--volumes", *now, *left)
    except engines.EngineError as error:
        _log.warning("container %s may be left. The next m5ws command tries to remove it again: %s", name, error)
        return
    mark.unlink(missing_ok=True)
