"""Container images, by digest, as environments: with Docker, Podman or Apptainer, the first one on PATH.

Folders have the same paths inside as outside. The command lines follow each engine's documentation. They are tested
only with a fake engine.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from m5ws.environment.interface import RebuiltEnvironment
from m5ws.environment.observe import own_package
from m5ws.environment.observe.hardware import IMAGE_VARIABLE
from m5ws.errors import M5Error
from m5ws.launch.interface import Launcher, Process
from m5ws.progress import Progress
from m5ws.records.launch import LaunchRequest, Observing
from m5ws.records.recipe import Recipe

ENGINES = ("podman", "docker", "apptainer")
_PYTHON = "python3"
# Variables about the folders and the user of this host. An image has its own.
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
    """A run is pinned to a container image, and no container engine is installed."""

    exit_code = 3


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """An image that an engine starts. `mounts` maps folders to True if they are writable."""

    engine: str
    program: str
    image: str
    mounts: dict[str, bool]
    gpus: bool = False

    def argv(
        self, words: Sequence[str], cwd: str, names: Sequence[str], mount: tuple[str, str] | None = None
    ) -> tuple[str, ...]:
        """Return the command line of `words` in the container, with the names of the variables to pass.

        Values are not in the command line, because other users can read it. `mount` is that of a `LaunchRequest`.
        """
        places = [(path, path, write) for path, write in self.mounts.items()]
        places += [(*mount, True)] if mount else []
        if self.engine == "apptainer":
            bound = (f"{folder}:{path}:{'rw' if write else 'ro'}" for folder, path, write in places)
            options = ["exec", *_pairs("--bind", bound), "--pwd", cwd, *["--nv"] * self.gpus]
            return (self.program, *options, f"docker://{self.image}", *words)
        bound = (f"{folder}:{path}{'' if write else ':ro'}" for folder, path, write in places)
        # Rootless Podman maps users; as root it refuses this option.
        mapped = self.engine == "podman" and os.geteuid() != 0
        mine = ("--userns", "keep-id") if mapped else ("--user", f"{os.getuid()}:{os.getgid()}")
        cards = ("--device", "nvidia.com/gpu=all") if self.engine == "podman" else ("--gpus", "all")
        options = ["run", "--rm", "--network", "host", "--ipc", "host", *mine, *(cards if self.gpus else ())]
        options += [*_pairs("--volume", bound), "--workdir", cwd, *_pairs("--env", names)]
        # The image's own entry point is replaced by the command.
        return (self.program, *options, "--entrypoint", words[0], self.image, *words[1:])


def _pairs(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


class _Variables(msgspec.Struct, frozen=True, kw_only=True):
    """Variables of processes in a container: the host's without `_HOSTS`, and `fixed`, which override all others."""

    host: Mapping[str, str]
    fixed: dict[str, str]

    def given(self, added: Mapping[str, str], unset: Sequence[str] = ()) -> dict[str, str]:
        inherited = {name: value for name, value in self.host.items() if name not in _HOSTS and name not in unset}
        own = {name: value for name, value in added.items() if name not in _HOSTS or self.host.get(name) != value}
        # Relative folders are part of the run; absolute ones are of the host.
        paths = [path for path in added.get("PYTHONPATH", "").split(os.pathsep) if path and not os.path.isabs(path)]
        python_path = {"PYTHONPATH": os.pathsep.join([self.fixed["PYTHONPATH"], *paths])}
        merged = inherited | own | self.fixed | python_path
        return {name: value for name, value in merged.items() if name.isidentifier()}


class ContainerLauncher:
    """`Launcher` that has `inner` start the engine, which starts the requested command."""

    def __init__(self, inner: Launcher, container: Container, variables: _Variables) -> None:
        self._inner = inner
        self._container = container
        self._variables = variables

    def launch(self, request: LaunchRequest) -> Process:
        """As `Launcher.launch`."""
        given = self._variables.given(request.environment, request.unset)
        options = (request.cwd, sorted(given), request.mount)
        prepare = self._container.argv(request.prepare, *options) if request.prepare else ()
        changed = {"argv": self._container.argv(request.argv, *options), "prepare": prepare, "environment": given}
        return self._inner.launch(msgspec.structs.replace(request, mount=None, **changed))

    def can_mount(self, folder: str, path: str) -> bool:
        """As `Launcher.can_mount`: every engine can."""
        return True


class Containers:
    """`Environments` of images. Ranks write to the folders `mounts`; `folder` is for the copy of m5ws."""

    def __init__(
        self,
        folder: Path,
        mounts: Sequence[Path],
        environment: Mapping[str, str],
        launcher: Callable[[Mapping[str, str]], Launcher],
        observing: Observing,
    ) -> None:
        self._folder = folder
        self._mounts = mounts
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
        if progress:
            progress(f"asking {engine} for {recipe.image}", 0, 0)
        return RebuiltEnvironment(
            python=_PYTHON,
            environment=self._environment,
            launcher=ContainerLauncher(self._launcher(self._environment), container, variables),
            observing=msgspec.structs.replace(self._observing, rebuilt=f"{engine} container of {recipe.image}"),
        )


def _engine(image: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the first engine on PATH, and its program. Raises NoEngine."""
    for engine in ENGINES:
        if program := shutil.which(engine, path=environment.get("PATH", os.defpath)):
            return engine, program
    raise NoEngine(
        f"the run is pinned to the container image {image}, and none of {', '.join(ENGINES)} is on PATH",
        hint=f"Install one of them. Or start the image by other means, with {IMAGE_VARIABLE}={image} set in the "
        "container, and reproduce there without `--env rebuild`.",
    )
