"""Container images, by digest, as environments: Docker, Podman or Apptainer, whichever is on PATH.

Folders have the same paths inside as outside. The command lines follow each engine's documentation, and are tested with
a stand-in for an engine alone.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from m5ws.environment.interface import Elsewhere, Observer
from m5ws.environment.observe import own_package, remote
from m5ws.environment.observe.hardware import IMAGE_VARIABLE
from m5ws.environment.observe.observing import Orders
from m5ws.errors import M5Error
from m5ws.launch.interface import Launcher, Process
from m5ws.progress import Progress
from m5ws.records.launch import LaunchRequest
from m5ws.records.recipe import Recipe

ENGINES = ("podman", "docker", "apptainer")
_PYTHON = "python3"
# What says where things are on this host, or who uses it; an image has its own.
_HOSTS = frozenset(
    (
        "_",
        "HOME",
        "HOSTNAME",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "LOGNAME",
        "MAIL",
        "OLDPWD",
        "PATH",
        "PWD",
        "PYTHONHOME",
        "PYTHONPATH",
        "SHELL",
        "SHLVL",
        "TMPDIR",
        "USER",
        "VIRTUAL_ENV",
    )
)


class NoEngine(M5Error):
    """A run is pinned to a container image, and nothing here can start it."""

    exit_code = 3


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """An image that an engine starts. `mounts` are folders, each whether it may be written to."""

    engine: str
    program: str
    image: str
    mounts: dict[str, bool]
    gpus: bool = False

    def argv(
        self, words: Sequence[str], cwd: str, names: Sequence[str], mount: tuple[str, str] | None = None
    ) -> tuple[str, ...]:
        """Return the command line of `words` in the container; it is given the variables `names` by name alone.

        So no value stands in a command line, which others can read. `mount` is that of a `LaunchRequest`.
        """
        places = [(path, path, write) for path, write in self.mounts.items()]
        places += [(*mount, True)] if mount else []
        if self.engine == "apptainer":
            bound = (f"{folder}:{path}:{'rw' if write else 'ro'}" for folder, path, write in places)
            options = ["exec", *_pairs("--bind", bound), "--pwd", cwd, *["--nv"] * self.gpus]
            return (self.program, *options, f"docker://{self.image}", *words)
        bound = (f"{folder}:{path}{'' if write else ':ro'}" for folder, path, write in places)
        # Podman without root maps users, and with it refuses to.
        mapped = self.engine == "podman" and os.geteuid() != 0
        mine = ("--userns", "keep-id") if mapped else ("--user", f"{os.getuid()}:{os.getgid()}")
        cards = ("--device", "nvidia.com/gpu=all") if self.engine == "podman" else ("--gpus", "all")
        options = ["run", "--rm", "--network", "host", "--ipc", "host", *mine, *(cards if self.gpus else ())]
        options += [*_pairs("--volume", bound), "--workdir", cwd, *_pairs("--env", names)]
        # What an image starts by itself is not what is wanted; the command is given whole.
        return (self.program, *options, "--entrypoint", words[0], self.image, *words[1:])


def _pairs(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


class _Variables(msgspec.Struct, frozen=True, kw_only=True):
    """What processes in a container are given: the host's variables but for `_HOSTS`, and `fixed` over all others."""

    host: Mapping[str, str]
    fixed: dict[str, str]

    def given(self, added: Mapping[str, str], unset: Sequence[str] = ()) -> dict[str, str]:
        inherited = {name: value for name, value in self.host.items() if name not in _HOSTS and name not in unset}
        own = {name: value for name, value in added.items() if name not in _HOSTS or self.host.get(name) != value}
        # A folder that is named from where the script is, and not from the host's root, is one of the run's own.
        paths = [path for path in added.get("PYTHONPATH", "").split(os.pathsep) if path and not os.path.isabs(path)]
        led = {"PYTHONPATH": os.pathsep.join([self.fixed["PYTHONPATH"], *paths])}
        return {name: value for name, value in (inherited | own | self.fixed | led).items() if name.isidentifier()}


class ContainerLauncher:
    """`Launcher`: has `inner` start the engine, which starts what was asked for."""

    def __init__(self, inner: Launcher, container: Container, variables: _Variables) -> None:
        self._inner = inner
        self._container = container
        self._variables = variables

    def launch(self, request: LaunchRequest) -> Process:
        """As `Launcher.launch`."""
        given = self._variables.given(request.environment, request.unset)
        where = (request.cwd, sorted(given), request.mount)
        prepare = self._container.argv(request.prepare, *where) if request.prepare else ()
        changed = {"argv": self._container.argv(request.argv, *where), "prepare": prepare, "environment": given}
        return self._inner.launch(msgspec.structs.replace(request, mount=None, **changed))

    def can_mount(self, folder: str, path: str) -> bool:
        """As `Launcher.can_mount`: every engine can."""
        return True


class Containers:
    """`Environments` of images. `mounts` are the folders that ranks write to; `folder` keeps m5ws's copy."""

    def __init__(
        self,
        folder: Path,
        mounts: Sequence[Path],
        environment: Mapping[str, str],
        launcher: Callable[[Mapping[str, str]], Launcher],
        here: Observer,
        orders: Orders,
    ) -> None:
        self._folder = folder
        self._mounts = mounts
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
        """As `Environments.build`. Raises NoEngine."""
        assert recipe.image is not None
        engine, program = _engine(recipe.image, self._environment)
        own = own_package.copy(self._folder)
        container = Container(
            engine=engine,
            program=program,
            image=recipe.image,
            mounts={str(path): True for path in self._mounts if path.exists()} | {str(own): False},
            gpus=Path("/proc/driver/nvidia/version").exists(),
        )
        fixed = {IMAGE_VARIABLE: recipe.image, "PYTHONPATH": str(own), "PYTHONDONTWRITEBYTECODE": "1"}
        variables = _Variables(host=self._environment, fixed=fixed)
        cwd = str(self._mounts[0])

        def command(words: tuple[str, ...], added: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
            given = variables.given(added)
            return container.argv(words, cwd, sorted(given)), self._environment | given

        name = f"{engine} container of {recipe.image}"
        if progress:
            progress(f"asking {engine} for {recipe.image}", 0, 0)
        return Elsewhere(
            python=_PYTHON,
            environment=self._environment,
            launcher=ContainerLauncher(self._launcher(self._environment), container, variables),
            observer=remote.ObservedElsewhere(self._here, command, _PYTHON, self._orders, name),
        )


def _engine(image: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the first engine on PATH, and its program. Raises NoEngine."""
    for engine in ENGINES:
        if program := shutil.which(engine, path=environment.get("PATH", os.defpath)):
            return engine, program
    raise NoEngine(
        f"the run is pinned to the container image {image}, and none of {', '.join(ENGINES)} is on PATH",
        hint=f"Install one of them; or start the image by other means, with {IMAGE_VARIABLE}={image} set in it, and "
        "reproduce there without `--env rebuild`.",
    )
