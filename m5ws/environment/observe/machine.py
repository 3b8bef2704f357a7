"""The machine, as the training processes will see it: `Observer`.

Every fact is read, none is guessed: what cannot be found is None. This process imports no torch; what only
torch can tell is asked of a process of its own (`effective_facts`). What observes is loaded when it is asked, since
most snapshots only declare.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import blake3

from m5ws.environment.observe import variables
from m5ws.errors import ConfigError
from m5ws.records.base import Digest
from m5ws.records.environment import Declared, Observed, Origin

if TYPE_CHECKING:
    from m5ws.environment.observe.torch_facts import Facts

_IMAGE = re.compile(r"[A-Za-z0-9][\w.:/-]*@sha256:[0-9a-f]{64}")
_IMAGE_HINT = (
    "Name the image by digest, NAME@sha256:…; `docker image inspect --format '{{index .RepoDigests 0}}' IMAGE` "
    "prints it for an image that was pulled or pushed."
)


class Machine:
    """Observes and declares environments. `root` is the workspace: code outside it is noted as a fact.

    `copied` is a copy of the workspace that something was installed from. `variable_names` are recorded beyond the
    built-in ones. `cache` is a directory that remembers what torch said, `base` the environment that training processes
    inherit, `system` where the machine's /proc, /sys … are. Without `provides` the files of distributions are not
    listed, which takes a tenth of a second. Raises ConfigError for a variable whose name says that it holds a secret.
    """

    def __init__(
        self,
        *,
        root: Path | None = None,
        copied: Path | None = None,
        variable_names: Sequence[str] = (),
        wanted: Mapping[str, str] | None = None,
        cache: Path | None = None,
        base: Mapping[str, str] = os.environ,
        system: Path = Path("/"),
        provides: bool = True,
    ) -> None:
        self._root = root or Path.cwd()
        self._roots = (self._root, copied) if copied is not None else (self._root,)
        self._variables = variables.allowed(variable_names)
        self._wanted = dict(wanted or {})
        self._cache = cache
        self._base = base
        self._system = system
        self._provides = provides

    def observe(self, environment: Mapping[str, str]) -> Observed:
        """Return what is here, with `environment` set over what processes inherit.

        What torch says (versions, vector capability, visible GPUs) comes from a process that is started for it;
        the rest is read from the system. With a cache, a second call starts none.
        """
        from m5ws.environment.observe import distributions, native_libraries, own_package
        from m5ws.environment.observe.torch_facts import EffectiveFacts

        merged = {**self._base, **environment}
        installed = distributions.installed()
        native = self._native(merged) | {"nccl.installed": native_libraries.nccl(installed, merged, self._system)}
        effective = EffectiveFacts(self._cache).read(merged, native, installed)
        origins = distributions.origins(*self._roots)
        noted = distributions.outside(self._root, merged, origins) | {"m5ws.code": own_package.code()}
        told = {name: value for name, value in effective.items() if value is not None or name not in native}
        facts = native | told | noted | variables.facts(self._variables, merged)
        return Observed(
            facts=dict(sorted(facts.items())),
            distributions=installed,
            origins=origins,
            provides=distributions.provides() if self._provides else None,
        )

    def origins(self, image: str | None) -> dict[str, Origin]:
        """Return where each installed distribution came from that no index gave, but for m5ws.

        Nothing inside a container of `image`, which pins what is installed in it.
        """
        from m5ws.environment.observe import distributions, hardware

        inside = hardware.container(self._system, self._base)["container.image"]
        return {} if image is not None and inside == image else distributions.origins(*self._roots)

    def declare(self, root: Path, lock_files: Sequence[str], image: str | None) -> Declared:
        """Return the lock files that are there, by digest, and the container image, which must be named by digest.

        Raises ConfigError for an image without digest and for a lock file outside the workspace.
        """
        if image is not None and not _IMAGE.fullmatch(image):
            raise ConfigError(f"environment.image is {image!r}, which can change its content", hint=_IMAGE_HINT)
        locks = {name: digest for name in lock_files if (digest := _lock(root, name)) is not None}
        return Declared(locks=locks, image=image, wanted=self._wanted)

    def _native(self, environment: Mapping[str, str]) -> "Facts":
        import platform
        import sysconfig

        from m5ws.environment.observe import hardware, native_libraries

        release = hardware.os_release(self._system)
        return {
            "python": platform.python_version(),
            "python.implementation": platform.python_implementation(),
            "platform": sysconfig.get_platform(),
            "os": release,
            "kernel": platform.release(),
            "glibc": _glibc(),
            **hardware.cpu(self._system),
            **hardware.gpu(self._system),
            **hardware.container(self._system, environment),
            **hardware.aws(self._system),
            **native_libraries.network(environment, self._system),
        }


def _glibc() -> str | None:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        return None


def _lock(root: Path, name: str) -> Digest | None:
    path = root / name
    if Path(name).is_absolute() or not path.resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"environment.locks names {name!r}, which is not inside the workspace")
    try:
        return blake3.blake3(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None
    except IsADirectoryError as error:
        raise ConfigError(f"environment.locks names {name!r}, which is a directory") from error
