"""`Observer` of another environment than this process's own: runs m5ws in it."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from m5ws.environment.interface import Observer
from m5ws.environment.observe.observing import ObserveRequest
from m5ws.errors import M5Error
from m5ws.records.environment import Declared, Observed, Origin

_TIMEOUT_S = 600.0
_ENGINE_FAILED = 125
"""Exit status of `docker run` and `podman run` for their own errors
(https://docs.docker.com/engine/containers/run/#exit-status)."""

Command = Callable[[tuple[str, ...], Mapping[str, str]], tuple[tuple[str, ...], dict[str, str]]]
"""Function from a Python command line and added variables to the full command line and all of its variables."""


class NotObserved(M5Error):
    """A rebuilt environment could not be observed."""

    exit_code = 3


class RemoteObserver:
    """Runs m5ws in another environment. `command` builds its command line, `local` is the observer of this process.

    `name` describes the environment, and becomes the fact `rebuilt`.
    """

    def __init__(self, local: Observer, command: Command, python: str, request: ObserveRequest, name: str) -> None:
        self._local = local
        self._command = command
        self._python = python
        self._request = request
        self._name = name

    def observe(self, environment: Mapping[str, str]) -> Observed:
        """Return the observed environment, with `environment` set. Raises NotObserved."""
        request = msgspec.json.encode(self._request).decode()
        words, variables = self._command(
            (self._python, "-P", "-m", "m5ws.environment.observe.observing", request), environment
        )
        try:
            done = subprocess.run(words, env=variables, capture_output=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotObserved(f"{self._name} could not be observed: {error}") from error
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        if done.returncode == _ENGINE_FAILED:
            raise NotObserved(
                "\n".join((f"{self._name} could not be started:", *lines)),
                hint="Start the engine, or let it find the image. `m5ws -v` shows the command.",
            )
        if done.returncode != 0:
            raise NotObserved(
                f"{self._name} could not be observed: {lines[-1] if lines else f'status {done.returncode}'}",
                hint="m5ws runs in that environment too, and needs its dependencies there: `pip install m5ws` installs "
                "them. `m5ws -v` shows the command.",
            )
        observed = msgspec.json.decode(done.stdout.splitlines()[-1], type=Observed)
        return msgspec.structs.replace(observed, facts=observed.facts | {"rebuilt": self._name})

    def declare(self, root: Path, lock_files: Sequence[str], image: str | None) -> Declared:
        """As `Observer.declare`, for the workspace on this machine."""
        return self._local.declare(root, lock_files, image)

    def origins(self, image: str | None) -> dict[str, Origin]:
        """As `Observer.origins`, for this process's interpreter."""
        return self._local.origins(image)
