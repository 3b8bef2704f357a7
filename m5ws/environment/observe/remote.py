"""Looks at environments other than this process's own: `Observer`, asked inside them."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from m5ws.environment.interface import Observer
from m5ws.environment.observe.observing import Orders
from m5ws.errors import M5Error
from m5ws.records.environment import Declared, Observed, Origin

_TIMEOUT_S = 600.0

Command = Callable[[tuple[str, ...], Mapping[str, str]], tuple[tuple[str, ...], dict[str, str]]]
"""Returns how a Python command line is started there with these variables, and all variables it is started with."""


class NotObserved(M5Error):
    """An environment that was made again could not be looked at."""

    exit_code = 3


class ObservedElsewhere:
    """Asks m5ws in another environment. `command` starts it, `orders` are for it; `here` declares.

    `name` says how the environment was made, and becomes the fact `rebuilt`.
    """

    def __init__(self, here: Observer, command: Command, python: str, orders: Orders, name: str) -> None:
        self._here = here
        self._command = command
        self._python = python
        self._orders = orders
        self._name = name

    def observe(self, environment: Mapping[str, str]) -> Observed:
        """Return what is there, with `environment` set. Raises NotObserved."""
        orders = msgspec.json.encode(self._orders).decode()
        words, variables = self._command(
            (self._python, "-P", "-m", "m5ws.environment.observe.observing", orders), environment
        )
        try:
            done = subprocess.run(words, env=variables, capture_output=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotObserved(f"{self._name} could not be looked at: {error}") from error
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise NotObserved(
                f"{self._name} could not be looked at: {lines[-1] if lines else f'status {done.returncode}'}",
                hint="m5ws runs in it too, and needs its own dependencies there: they are installed with `pip install "
                "m5ws`. `m5ws -v` shows the command.",
            )
        found = msgspec.json.decode(done.stdout.splitlines()[-1], type=Observed)
        return msgspec.structs.replace(found, facts=found.facts | {"rebuilt": self._name})

    def declare(self, root: Path, lock_files: Sequence[str], image: str | None) -> Declared:
        """As `Observer.declare`, of the workspace here."""
        return self._here.declare(root, lock_files, image)

    def origins(self, image: str | None) -> dict[str, Origin]:
        """As `Observer.origins`, of this process's interpreter."""
        return self._here.origins(image)
