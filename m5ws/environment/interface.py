"""Interfaces of observers of an environment, and of environments made again."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from m5ws.launch.interface import Launcher
from m5ws.records.environment import Declared, Observed, Origin
from m5ws.records.recipe import Recipe

if TYPE_CHECKING:
    from m5ws.progress import Progress


class Observer(Protocol):
    """Looks at this machine as the training processes will see it."""

    def observe(self, environment: Mapping[str, str]) -> Observed:
        """Return the observed environment, with `environment` set; in a process of its own."""

    def declare(self, root: Path, lock_files: Sequence[str], image: str | None) -> Declared:
        """Return the declared environment of the workspace at `root`."""

    def origins(self, image: str | None) -> dict[str, Origin]:
        """Return where each installed distribution came from that no index gave, but for m5ws; fast.

        Nothing inside a container of `image`, which pins what is installed in it.
        """


class Elsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """An environment that was made again: its interpreter, what processes in it inherit, and who looks and starts."""

    python: str
    environment: Mapping[str, str]
    launcher: Launcher
    observer: Observer


class Environments(Protocol):
    """Makes environments again."""

    def build(
        self,
        recipe: Recipe,
        write_code: Callable[[Path], None],
        progress: "Progress | None" = None,
        *,
        same_patch: bool = True,
    ) -> Elsewhere:
        """Return the environment of a recipe, which is built if it was not before; `write_code` fills a new folder.

        With `same_patch`, the interpreter is of the very version. Raises M5Error for what is missing, or cannot be
        installed.
        """
