"""Recorded environments as virtual environments, built by the standard `venv` and pip, and kept for later runs.

The folder's name is a digest of recipe, interpreter and platform. An environment is built in its final folder, because
its programs contain that path. It is valid once its file `complete` exists; an incomplete environment is removed and
built again. One process builds, others wait.
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
from m5ws.environment.observe import own_package
from m5ws.environment.rebuild import interpreters, pip
from m5ws.errors import UsageError
from m5ws.launch.interface import Launcher, Process
from m5ws.progress import Progress, report
from m5ws.records import codec
from m5ws.records.launch import LaunchRequest, Observing
from m5ws.records.recipe import Recipe

_COMPLETE = "complete"


class RebuiltEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """A rebuilt environment: its interpreter, the variables that processes inherit, and its launcher.

    `observing` has the orders for the first rank in it.
    """

    python: str
    environment: Mapping[str, str]
    launcher: Launcher
    observing: Observing


class _Launcher:
    """`Launcher` that has `inner` start processes with m5ws on PYTHONPATH, also if a run sets that variable."""

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
    """Environments below `folder`. `observing` are the orders of the workspace; `launcher` makes one for variables."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        launcher: Callable[[Mapping[str, str]], Launcher],
        observing: Observing,
    ) -> None:
        if folder.resolve().is_relative_to(Path(observing.root).resolve()):
            raise UsageError(
                f"the folder for environments, {folder}, is inside the workspace",
                hint="Set XDG_CACHE_HOME to a folder outside: ranks may not load code from the checkout.",
            )
        self._folder = folder
        self._environment = dict(environment)
        self._launcher = launcher
        self._observing = observing

    def build(
        self,
        recipe: Recipe,
        write_code: Callable[[Path], None],
        progress: Progress | None = None,
        *,
        same_patch: bool = True,
    ) -> RebuiltEnvironment:
        """Return the environment of a recipe, and build it if needed. `write_code` writes the code to a new folder.

        With `same_patch` the interpreter has exactly the recorded version. Raises NoPython, NotInstalled.
        """
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
        return self._environment_at(recipe, place)

    def _environment_at(self, recipe: Recipe, place: Path) -> RebuiltEnvironment:
        python = str(place / "venv" / "bin" / "python")
        own = own_package.copy(self._folder)
        environment = _inherited(self._environment, place, own)
        if "deepspeed" in recipe.names and "TORCH_EXTENSIONS_DIR" not in environment:
            # Operators in the shared folder may be built for another version of torch.
            environment["TORCH_EXTENSIONS_DIR"] = str(place / "extensions")
        name = f"virtual environment {place.name}"
        return RebuiltEnvironment(
            python=python,
            environment=environment,
            launcher=_Launcher(self._launcher(environment), own),
            observing=msgspec.structs.replace(self._observing, copy=str(place / "code"), rebuilt=name),
        )


def _key(recipe: Recipe, base: Path) -> str:
    parts = codec.encode(recipe) + f"\0{base.resolve()}\0{sysconfig.get_platform()}".encode()
    return blake3.blake3(parts).hexdigest()[:24]


def _inherited(environment: Mapping[str, str], place: Path, own: Path) -> dict[str, str]:
    """Return the variables of processes in the environment: as after `activate`, with this m5ws first."""
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
    """Return variables that override the inherited variables, with m5ws in PYTHONPATH if they have PYTHONPATH."""
    paths = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", str(own))]
    return dict(variables) | ({"PYTHONPATH": os.pathsep.join([str(own), *paths])} if paths else {})


def _complete(place: Path) -> None:
    """Sync the environment to disk, then mark it as complete."""
    subprocess.run(["sync", "-f", str(place)], check=False, capture_output=True)
    # Published from here on.
    (place / _COMPLETE).touch()


@contextmanager
def _alone(lock: Path, progress: Progress | None) -> Iterator[None]:
    """Hold a lock among processes. Child processes inherit it, because pip may outlive a killed m5ws."""
    with open(lock, "a") as held:
        os.set_inheritable(held.fileno(), True)
        if not locks.acquire(held.fileno()):
            report(progress, "waiting for another process that builds the environment")
            locks.acquire(held.fileno(), math.inf)
        yield
