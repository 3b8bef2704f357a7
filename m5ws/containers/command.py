"""The command line that starts a program in a container of Podman or Docker.

A container sees the folders of its request under their own paths, and nothing else of this machine. Memory shared by
processes is its own, so that none is left after a kill. The network is the machine's. Sources:
https://docs.podman.io/en/latest/markdown/podman-run.1.html, https://docs.docker.com/reference/cli/docker/container/run/.
"""

import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from m5ws.containers.engines import DOCKER, PODMAN, Engine, EngineError
from m5ws.version import __version__

PYTHON = "python3"
"""The program in an image that starts its ranks."""
_BEGIN = """
import importlib.util, sys
have, lacks = None, []
if importlib.util.find_spec("m5ws"):
    from m5ws.version import __version__ as have
if have != sys.argv[1]:
    lacks.append(f"m5ws {sys.argv[1]} (the image has {have or 'none'})")
if not importlib.util.find_spec("torch"):
    lacks.append("torch")
if lacks:
    sys.exit(f"m5ws: the image lacks {' and '.join(lacks)}. Its Containerfile needs the line: "
             f"RUN pip install 'm5ws[train]=={sys.argv[1]}'")
from m5ws.launch import reaper
reaper.main("0", *sys.argv[2:])
"""
"""The first program in a container. It ends with an error that names the packages that the image lacks."""
_CDI = ("etc/cdi", "var/run/cdi")
"""Folders with the devices for containers (https://github.com/cncf-tags/container-device-interface)."""


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """A container by its unique `name`. It sees `folders`, and `mount` as in a `LaunchRequest`."""

    image: str
    name: str
    cwd: str
    folders: tuple[str, ...]
    mount: tuple[str, str] | None = None


def argv(
    engine: Engine,
    container: Container,
    environment: Mapping[str, str],
    host: Mapping[str, str],
    words: Sequence[str],
    processes: str = "",
) -> list[str]:
    """Return the command that starts `words` with `environment` in a container, below a reaper (launch/reaper.py).

    `processes` is the folder in which ranks name themselves. The command has the values of variables of which the
    program itself, with the variables `host`, has other values. All users can read it. Raises EngineError for GPUs that
    the engine cannot pass on.
    """
    mounts = [(folder, folder) for folder in container.folders] + ([container.mount] if container.mount else [])
    variables = (name if host.get(name, value) == value else f"{name}={value}" for name, value in environment.items())
    options = [
        *("run", "--rm", "--pull", "never", "--name", container.name),
        *("--network", "host", "--log-driver", "none", "--security-opt", "label=disable", "--workdir", container.cwd),
        *_user(engine),
        *_shared_memory(),
        *_devices(engine),
        *_repeat("--mount", (f"type=bind,source={folder},target={path}" for folder, path in mounts)),
        *_repeat("--env", variables),
    ]
    begin = ("-I", "-c", _BEGIN, __version__, processes, "0", "", "")
    return [engine.program, *options, "--entrypoint", PYTHON, container.image, *begin, *words]


def _repeat(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _user(engine: Engine) -> tuple[str, ...]:
    """Return the options for the user of m5ws. Podman without the rights of root maps that user."""
    if engine.name == PODMAN and os.geteuid() != 0:
        return "--userns", "keep-id"
    return "--user", f"{os.geteuid()}:{os.getegid()}"


def _shared_memory() -> tuple[str, ...]:
    """Return the option for a /dev/shm of its own, as large as the machine's."""
    try:
        size = os.statvfs("/dev/shm")  # noqa: S108  the size of the file system, not a file in it
    except OSError:
        return ()
    return "--shm-size", f"{size.f_frsize * size.f_blocks}b"


def _devices(engine: Engine, system: Path = Path("/")) -> list[str]:
    """Return the options for all GPUs and EFA devices of the machine with the root folder `system`.

    EFA needs memory that cannot be paged out. Podman cannot allow more of it than m5ws itself may have.
    """
    network = sorted(str(Path("/", path.relative_to(system))) for path in (system / "dev/infiniband").glob("*"))
    may_lock = engine.name == DOCKER or resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] == resource.RLIM_INFINITY
    locked = ["--ulimit", "memlock=-1:-1"] if network and may_lock else []
    return [*_gpus(engine, system), *_repeat("--device", network), *locked]


def _gpus(engine: Engine, system: Path) -> tuple[str, ...]:
    if not any((system / "proc/driver/nvidia/gpus").glob("*")):
        return ()
    if engine.name == DOCKER:
        return "--gpus", "all"
    files = (file for folder in _CDI for file in (system / folder).glob("*.*"))
    if not any("nvidia.com/gpu" in file.read_text(errors="replace") for file in files):
        raise EngineError(
            "podman cannot pass on the GPUs of this machine: no file in /etc/cdi or /var/run/cdi lists the GPUs",
            hint="Run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` as root (NVIDIA Container Toolkit).",
        )
    return "--device", "nvidia.com/gpu=all"
