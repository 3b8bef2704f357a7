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

Variables = Callable[[Mapping[str, str]], dict[str, str]]
"""Function from added variables to all variables of a process."""


class NotObserved(M5Error):
    """A rebuilt environment could not be observed."""

    exit_code = 3


class RemoteObserver:
    """Runs m5ws by the interpreter `python` of another environment. `local` is the observer of this process.

    `name` describes the environment, and becomes the fact `rebuilt`.
    """

    def __init__(self, local: Observer, variables: Variables, python: str, request: ObserveRequest, name: str) -> None:
        self._local = local
        self._variables = variables
        self._python = python
        self._request = request
        self._name = name

    def observe(self, environment: Mapping[str, str]) -> Observed:
        """Return the observed environment, with `environment` set. Raises NotObserved."""
        request = msgspec.json.encode(self._request).decode()
        words = (self._python, "-P", "-m", "m5ws.environment.observe.observing", request)
        variables = self._variables(environment)
        try:
            done = subprocess.run(words, env=variables, capture_output=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotObserved(f"{self._name} could not be observed: {error}") from error
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
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
