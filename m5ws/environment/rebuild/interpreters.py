"""Python interpreters of this machine, by version: the interpreter that runs m5ws, and `pythonX.Y` on PATH."""

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
    """The required Python version is not installed on this machine."""

    exit_code = 3


def find(version: str, environment: Mapping[str, str], *, same_patch: bool = True) -> Path:
    """Return a CPython of `version`; without `same_patch` also another patch version of the same minor version.

    Raises NoPython, which names the installed versions.
    """
    minor = ".".join(version.split(".")[:2])
    installed: dict[str, Path] = {}
    for path in _candidates(minor, environment):
        candidate = _version(path, environment)
        if candidate == version:
            return path
        if candidate is not None and candidate.startswith(f"{minor}."):
            installed.setdefault(candidate, path)
    if installed and not same_patch:
        return installed[max(installed, key=_key)]
    present = (
        f"only {', '.join(sorted(installed, key=_key))} is installed" if installed else f"no python{minor} on PATH"
    )
    choice = " Or use an installed version, with a warning: `--env rebuild --env warn`." if installed else ""
    raise NoPython(
        f"the environment needs Python {version}: {present}",
        hint=f"Install this version (`pyenv install {version}`, `uv python install {version}`, or the system's "
        f"packages), and put its folder on PATH, so that `python{minor}` starts it.{choice}",
    )


def _candidates(minor: str, environment: Mapping[str, str]) -> Iterator[Path]:
    # If m5ws runs in a virtual environment, this is the interpreter that made it.
    own = Path(getattr(sys, "_base_executable", sys.executable))
    if ".".join(map(str, sys.version_info[:2])) == minor:
        yield own
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        path = Path(folder or ".").absolute() / f"python{minor}"
        if os.access(path, os.X_OK) and path != own:
            yield path


def _version(path: Path, environment: Mapping[str, str]) -> str | None:
    """Return the version of a CPython, None if it does not start, as a shim without an installed version."""
    try:
        done = subprocess.run(
            [path, "-I", "-c", _ASK], env=dict(environment), capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.fullmatch(r"CPython (\d+\.\d+\.\S+)", done.stdout.decode(errors="replace").strip())
    return match[1] if match and done.returncode == 0 else None


def _key(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
