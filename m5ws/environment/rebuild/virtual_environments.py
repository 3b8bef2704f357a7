"""Virtual environments made from recipes, by the standard `venv` and pip, and kept: `Environments`.

An environment is kept under a digest of its recipe, interpreter and platform. It is built where it stays, since its
programs name their own folder, and counts from the moment its file `complete` appears: what a kill left is built anew.
One process builds, others wait for it.
"""

import math
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import blake3
import msgspec

from m5ws import locks
from m5ws.environment.interface import Elsewhere, Observer
from m5ws.environment.observe import own_package, remote
from m5ws.environment.observe.observing import Orders
from m5ws.environment.rebuild import interpreters, pip
from m5ws.errors import UsageError
from m5ws.launch.interface import Launcher, Process
from m5ws.progress import Progress
from m5ws.records import codec
from m5ws.records.launch import LaunchRequest
from m5ws.records.recipe import Recipe

_COMPLETE = "complete"


class _Launcher:
    """`Launcher`: has `inner` start processes that find m5ws whatever a run sets."""

    def __init__(self, inner: Launcher, own: Path) -> None:
        self._inner = inner
        self._own = own

    def launch(self, request: LaunchRequest) -> Process:
        """As `Launcher.launch`."""
        return self._inner.launch(
            msgspec.structs.replace(request, environment=_with_own(request.environment, self._own))
        )

    def can_mount(self, folder: str, path: str) -> bool:
        """As `Launcher.can_mount`."""
        return self._inner.can_mount(folder, path)


class VirtualEnvironments:
    """Environments below `folder`. `orders` tell what is observed in them, `launcher` starts with an environment."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        launcher: Callable[[Mapping[str, str]], Launcher],
        here: Observer,
        orders: Orders,
    ) -> None:
        if folder.resolve().is_relative_to(Path(orders.root).resolve()):
            raise UsageError(
                f"environments would be kept in {folder}, inside the workspace",
                hint="Let XDG_CACHE_HOME name a folder elsewhere: ranks may not load code from the checkout.",
            )
        self._folder = folder
        self._environment = dict(environment)
        self._launcher = launcher
        self._here = here
        self._orders = orders

    def build(
        self,
        recipe: Recipe,
        write_code: Callable[[Path], None],
        progress: Progress | None = None,
        *,
        same_patch: bool = True,
    ) -> Elsewhere:
        """As `Environments.build`. Raises NoPython, NotInstalled."""
        base = interpreters.find(recipe.python, self._environment, same_patch=same_patch)
        place = self._folder / _key(recipe, base)
        self._folder.mkdir(parents=True, exist_ok=True)
        with _alone(self._folder / f"{place.name}.lock", progress):
            if not (place / _COMPLETE).exists():
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir()
                write_code(place / "code")
                pip.install(recipe, base, place, self._environment, progress)
                _complete(place)
        return self._there(recipe, place)

    def _there(self, recipe: Recipe, place: Path) -> Elsewhere:
        python = str(place / "venv" / "bin" / "python")
        own = own_package.copy(self._folder)
        environment = _inherited(self._environment, place, own)
        if "deepspeed" in recipe.names and "TORCH_EXTENSIONS_DIR" not in environment:
            # An operator that is built for this torch is not the one that another torch has in the common folder.
            environment["TORCH_EXTENSIONS_DIR"] = str(place / "extensions")

        def command(words: tuple[str, ...], variables: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
            return words, environment | _with_own(variables, own)

        orders = Orders(
            root=self._orders.root,
            copied=str(place / "code"),
            variable_names=self._orders.variable_names,
            cache=self._orders.cache,
        )
        name = f"virtual environment {place.name}"
        return Elsewhere(
            python=python,
            environment=environment,
            launcher=_Launcher(self._launcher(environment), own),
            observer=remote.ObservedElsewhere(self._here, command, python, orders, name),
        )


def _key(recipe: Recipe, base: Path) -> str:
    parts = codec.encode(recipe) + f"\0{base.resolve()}\0{sysconfig.get_platform()}".encode()
    return blake3.blake3(parts).hexdigest()[:24]


def _inherited(environment: Mapping[str, str], place: Path, own: Path) -> dict[str, str]:
    """Return what processes in the environment inherit: as after `activate`, with this m5ws before all else."""
    programs = str(place / "venv" / "bin")
    paths = [str(own), *filter(None, (environment.get("PYTHONPATH"),))]
    inherited = dict(environment) | {
        "VIRTUAL_ENV": str(place / "venv"),
        "PATH": os.pathsep.join(filter(None, (programs, environment.get("PATH")))),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    inherited.pop("PYTHONHOME", None)
    return inherited


def _with_own(variables: Mapping[str, str], own: Path) -> dict[str, str]:
    """Return variables that are set over the inherited ones; a PYTHONPATH among them would hide m5ws otherwise."""
    paths = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", str(own))]
    return dict(variables) | ({"PYTHONPATH": os.pathsep.join([str(own), *paths])} if paths else {})


def _complete(place: Path) -> None:
    """Have everything on the disk, then say so."""
    subprocess.run(["sync", "-f", str(place)], check=False, capture_output=True)
    # The environment counts from here on.
    (place / _COMPLETE).touch()


@contextmanager
def _alone(lock: Path, progress: Progress | None) -> Iterator[None]:
    """Hold a lock among processes, and among what they start: pip may live on for a while when m5ws is killed."""
    with open(lock, "a") as held:
        os.set_inheritable(held.fileno(), True)
        if not locks.acquire(held.fileno()):
            if progress:
                progress("waiting for another process that builds the environment", 0, 0)
            locks.acquire(held.fileno(), math.inf)
        yield
