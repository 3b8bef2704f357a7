"""Fills a new virtual environment with exactly what a recipe names, by pip with its user's own configuration."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from m5ws.errors import M5Error
from m5ws.progress import Progress
from m5ws.records.recipe import Recipe, Requirement

_LOG = "pip.log"
_BEGUN = ("Collecting ", "Processing ", "Requirement already satisfied")
_BUNDLED = ("setuptools", "pip")
"""What `venv` may install by itself, pip last: it removes the other."""
_ELSEWHERE = {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"}
"""Where a user may have pip install, and not into the environment."""


class NotInstalled(M5Error):
    """A virtual environment could not be made, or pip could not install what it needs."""

    exit_code = 3


def install(recipe: Recipe, base: Path, place: Path, environment: Mapping[str, str], progress: Progress | None) -> None:
    """Make `place`/venv with the interpreter `base`; the recipe's code is in `place`/code. Raises NotInstalled."""
    kept = {name for name in environment if not name.startswith("PYTHON")} - _ELSEWHERE
    variables = {name: environment[name] for name in kept} | {"PIP_USER": "0"}
    log = place / _LOG
    if progress:
        progress("making a virtual environment", 0, 0)
    _run([str(base), "-I", "-m", "venv", str(place / "venv")], place, variables, log, "venv", base)
    python = str(place / "venv" / "bin" / "python")
    # -I: what PYTHONPATH names is not installed here. pip's own variables and files are read all the same.
    pip = [python, "-I", "-m", "pip"]
    shown = _Shown(progress, len(recipe.requirements))
    for number, part in enumerate(_parts(recipe)):
        lines = place / f"requirements-{number}.txt"
        lines.write_text("".join(f"{one.line}\n" for one in part if not one.path))
        words = [*pip, "install", "--no-deps", "--no-input", "--disable-pip-version-check", "--requirement", str(lines)]
        words += [str(place / "code" / one.path) for one in part if one.path]
        _run(words, place, variables, log, "pip", base, shown)
    for name in _BUNDLED:
        if name not in recipe.names:
            _run([*pip, "uninstall", "--yes", name], place, variables, log, "pip", base)


def _parts(recipe: Recipe) -> list[list[Requirement]]:
    """Return what is installed together: pip checks either all hashes of a call, or none."""
    hashed = [one for one in recipe.requirements if one.hashes]
    bare = [one for one in recipe.requirements if not one.hashes]
    return [part for part in (hashed, bare) if part]


class _Shown:
    """Counts the distributions that pip has begun with, by what it prints."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def see(self, line: str) -> None:
        if line.startswith(_BEGUN) and self._done < self._total:
            self._done += 1
        if self._progress:
            self._progress("installing distributions", self._done, self._total)


def _run(
    words: Sequence[str],
    place: Path,
    environment: Mapping[str, str],
    log: Path,
    program: str,
    base: Path,
    shown: _Shown | None = None,
) -> None:
    """Run a command and keep what it prints. Raises NotInstalled with the line that says why it failed."""
    said: list[str] = []
    with log.open("a") as kept, subprocess.Popen(
        words,
        cwd=place,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        close_fds=False,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            kept.write(line)
            said.append(line.strip())
            if shown is not None:
                shown.see(line)
    if process.returncode != 0:
        raise _failed(program, said, log, base)


def _failed(program: str, said: Sequence[str], log: Path, base: Path) -> NotInstalled:
    errors = [line for line in said if line.upper().startswith("ERROR")]
    last = next(iter((*reversed(errors), *reversed(said))), "it gave no reason")
    if program == "venv":
        hint = f"{base} needs the standard modules venv and ensurepip; on Debian and Ubuntu: apt install python3-venv."
    else:
        hint = (
            "pip looks where its configuration says (`pip config list`, PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, "
            f"PIP_FIND_LINKS): name the index that the original was installed from. All it printed: {log}"
        )
    return NotInstalled(f"{program} could not make the environment: {last}", hint=hint)
