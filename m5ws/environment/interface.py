"""Interface of observers of an environment, and the record of a rebuilt environment."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from m5ws.launch.interface import Launcher
from m5ws.records.environment import Declared, Observed, Origin
from m5ws.records.launch import Observing


class Observer(Protocol):
    """Observes this machine as training processes see it."""

    def observe(self, environment: Mapping[str, str]) -> Observed:
        """Return the observed environment, with `environment` set. Parts of it come from a separate process."""

    def declare(self, root: Path, lock_files: Sequence[str], image: str | None) -> Declared:
        """Return the declared environment of the workspace at `root`."""

    def origins(self, image: str | None) -> dict[str, Origin]:
        """Return the origins of installed distributions that do not come from an index, without m5ws. Fast.

        Empty with a pinned `image`: the ranks run in the image, which pins them.
        """


class RebuiltEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """A rebuilt environment: its interpreter, the variables that processes inherit, and its launcher.

    `observing` has the orders for the first rank in it.
    """

    python: str
    environment: Mapping[str, str]
    launcher: Launcher
    observing: Observing
