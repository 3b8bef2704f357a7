"""Python interpreters of this machine, by version: the one that runs m5ws, and `pythonX.Y` on PATH."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from m5ws.errors import M5Error

_TIMEOUT_S = 60.0
_ASK = "import platform; print(platform.python_implementation(), platform.python_version())"


class NoPython(M5Error):
    """The interpreter that an environment needs is not on this machine."""

    exit_code = 3


def find(version: str, environment: Mapping[str, str], *, same_patch: bool = True) -> Path:
    """Return a CPython of `version`, without `same_patch` one of its minor version if there is no better.

    Raises NoPython, which says what there is.
    """
    minor = ".".join(version.split(".")[:2])
    others: dict[str, Path] = {}
    for path in _candidates(minor, environment):
        found = _version(path, environment)
        if found == version:
            return path
        if found is not None and found.startswith(f"{minor}."):
            others.setdefault(found, path)
    if others and not same_patch:
        return others[max(others, key=_key)]
    there = f"there is only {', '.join(sorted(others, key=_key))}" if others else f"python{minor} is not on PATH"
    other = "; or take what there is, and have the difference named: `--env rebuild --env warn`" if others else ""
    raise NoPython(
        f"the environment is of Python {version}, and {there}",
        hint=f"Install it (`pyenv install {version}`, `uv python install {version}`, or the system's packages) and put "
        f"its folder on PATH, so that `python{minor}` starts it{other}.",
    )


def _candidates(minor: str, environment: Mapping[str, str]) -> Iterator[Path]:
    # Not the virtual environment that m5ws may run in, but what that was made from.
    own = Path(getattr(sys, "_base_executable", sys.executable))
    if ".".join(map(str, sys.version_info[:2])) == minor:
        yield own
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        path = Path(folder or ".").absolute() / f"python{minor}"
        if os.access(path, os.X_OK) and path != own:
            yield path


def _version(path: Path, environment: Mapping[str, str]) -> str | None:
    """Return the version of a CPython that works, else None: a shim may start nothing."""
    try:
        done = subprocess.run(
            [path, "-I", "-c", _ASK], env=dict(environment), capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = re.fullmatch(r"CPython (\d+\.\d+\.\S+)", done.stdout.decode(errors="replace").strip())
    return said[1] if said and done.returncode == 0 else None


def _key(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
