"""Observation of this machine, as training processes see it.

Every fact is read, and none is guessed: an unknown fact is None. Facts that need torch are read in ranks, which have
it. Modules are imported on use, because most snapshots only declare.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import blake3

from m5ws import secret_gate
from m5ws.environment.observe import variables
from m5ws.errors import ConfigError
from m5ws.records.base import Digest
from m5ws.records.environment import ENVIRONMENT, IMAGE, Declared, Observed, Origin

if TYPE_CHECKING:
    from m5ws.environment.observe.hardware import Facts

_PATHS = re.compile(r" (?=/|\{environment\}/)")
"""The blank between the paths of a library's files. A path may contain blanks too."""
_IMAGE_HINT = (
    "Name the image by digest, NAME@sha256:…; `m5ws pin --image NAME` asks the container engine for the digest, and "
    "writes this key."
)


class Machine:
    """Observes and declares environments. `root` is the workspace; code outside it becomes a fact.

    `copies` are copies of the workspace, from which distributions may be installed. `variable_names` are recorded in
    addition to the built-in variables. `read_torch` returns the facts from torch; without it, they are not observed.
    `base` is the environment that training processes inherit, `system` the root folder of /proc, /sys …. Without
    `provides` the files of distributions are not listed, which saves a tenth of a second. Raises ConfigError for a
    variable with the name of a secret.
    """

    def __init__(
        self,
        *,
        root: Path | None = None,
        copies: Sequence[Path] = (),
        variable_names: Sequence[str] = (),
        read_torch: "Callable[[], Facts] | None" = None,
        base: Mapping[str, str] = os.environ,
        system: Path = Path("/"),
        provides: bool = True,
    ) -> None:
        self._roots = (root or Path.cwd(), *copies)
        self._variables = variables.allowed(variable_names)
        self._read_torch = read_torch
        self._base = base
        self._system = system
        self._provides = provides

    def observe(self, environment: Mapping[str, str]) -> Observed:
        """Return the observed environment, with `environment` over the variables that processes inherit."""
        from m5ws.environment.observe import conda, distributions, native_libraries, own_package

        merged = {**self._base, **environment}
        installed = distributions.installed()
        native = self._native(merged) | {"nccl.installed": native_libraries.nccl(installed, merged, self._system)}
        effective = self._read_torch() if self._read_torch is not None else {}
        origins = distributions.origins(*self._roots)
        code = distributions.outside(self._roots, merged, origins) | {"m5ws.code": own_package.code()}
        known = {name: value for name, value in effective.items() if value is not None or name not in native}
        facts = native | known | code | conda.facts() | _owners(known) | variables.facts(self._variables, merged)
        return Observed(
            facts=secret_gate.masked(dict(sorted(facts.items()))),
            distributions=installed,
            origins=secret_gate.masked(origins),
            provides=distributions.provides() if self._provides else None,
        )

    def origins(self, image: str | None) -> dict[str, Origin]:
        """Return the origins of installed distributions that do not come from an index, without m5ws. Fast.

        Empty with a pinned `image`: the ranks run in the image, which pins them.
        """
        from m5ws.environment.observe import distributions

        return {} if image is not None else distributions.origins(*self._roots)

    def declare(self, root: Path, lock_files: Sequence[str], image: str | None) -> Declared:
        """Return the existing lock files, by digest, and the container image, which must be named by digest.

        Raises ConfigError for an image without digest, and for a lock file outside the workspace.
        """
        if image is not None and not IMAGE.fullmatch(image):
            raise ConfigError(f"environment.image is {image!r}, which has no digest", hint=_IMAGE_HINT)
        locks = {name: digest for name in lock_files if (digest := _lock(root, name)) is not None}
        return Declared(locks=locks, image=image)

    def _native(self, environment: Mapping[str, str]) -> "Facts":
        import platform
        import sysconfig

        from m5ws.environment.observe import container, hardware, native_libraries

        release = hardware.os_release(self._system)
        return {
            "python": platform.python_version(),
            "python.implementation": platform.python_implementation(),
            "platform": sysconfig.get_platform(),
            "os": release,
            "kernel": platform.release(),
            "glibc": " ".join(platform.libc_ver()).strip() or None,
            **hardware.cpu(self._system),
            **hardware.gpu(self._system),
            **container.facts(self._system, environment),
            **hardware.aws(self._system),
            **native_libraries.network(environment, self._system),
        }


def _owners(effective: "Facts") -> "Facts":
    """Return the distributions that installed the loaded libraries which `drift.conflicts` compares.

    A library with several loaded files has an owner if it has installed all of them.
    """
    from m5ws.environment import drift
    from m5ws.environment.observe import distributions

    facts: Facts = {}
    for pair in drift.table().pair:
        if files := effective.get(f"{drift.LOADED}{pair.loaded}"):
            paths = (Path(path.replace(ENVIRONMENT, sys.prefix, 1)) for path in _PATHS.split(files))
            owners = {distributions.owner(path, pair.installed) for path in paths}
            facts[f"{drift.OWNER}{pair.loaded}"] = owners.pop() if len(owners) == 1 else None
    return facts


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
