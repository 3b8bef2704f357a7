"""Installs the distributions of a recipe in a new virtual environment, by pip with the user's configuration."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from m5ws.errors import M5Error
from m5ws.progress import Progress
from m5ws.records.recipe import Recipe, Requirement

_LOG = "pip.log"
_BEGUN = ("Collecting ", "Processing ", "Requirement already satisfied")
_BUNDLED = ("setuptools", "pip")
"""Distributions that `venv` may install. pip is last, because it uninstalls the other one."""
_ELSEWHERE = {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"}
"""Variables with which pip would install outside the environment."""


class NotInstalled(M5Error):
    """A virtual environment could not be made, or pip could not install a distribution."""

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
    # -I: distributions on PYTHONPATH do not count as installed. pip's variables and files still apply.
    pip = [python, "-I", "-m", "pip"]
    shown = _InstallCounter(progress, len(recipe.requirements))
    for number, part in enumerate(_parts(recipe)):
        lines = place / f"requirements-{number}.txt"
        lines.write_text("".join(f"{requirement.line}\n" for requirement in part if not requirement.path))
        words = [*pip, "install", "--no-deps", "--no-input", "--disable-pip-version-check", "--requirement", str(lines)]
        words += [str(place / "code" / requirement.path) for requirement in part if requirement.path]
        _run(words, place, variables, log, "pip", base, shown)
    for name in _BUNDLED:
        if name not in recipe.names:
            _run([*pip, "uninstall", "--yes", name], place, variables, log, "pip", base)


def _parts(recipe: Recipe) -> list[list[Requirement]]:
    """Return the requirements by call of pip, which checks either all hashes of a call or none."""
    hashed = [requirement for requirement in recipe.requirements if requirement.hashes]
    bare = [requirement for requirement in recipe.requirements if not requirement.hashes]
    return [part for part in (hashed, bare) if part]


class _InstallCounter:
    """Counts the distributions that pip has begun with, by its output."""

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
    shown: _InstallCounter | None = None,
) -> None:
    """Run a command and log its output. Raises NotInstalled with the line that has the reason."""
    output: list[str] = []
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
            output.append(line.strip())
            if shown is not None:
                shown.see(line)
    if process.returncode != 0:
        raise _failed(program, output, log, base)


def _failed(program: str, output: Sequence[str], log: Path, base: Path) -> NotInstalled:
    errors = [line for line in output if line.upper().startswith("ERROR")]
    last = next(iter((*reversed(errors), *reversed(output))), "no error message")
    if program == "venv":
        hint = f"{base} needs the standard modules venv and ensurepip; on Debian and Ubuntu: apt install python3-venv."
    else:
        hint = (
            "pip uses the indexes of its configuration (`pip config list`, PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, "
            f"PIP_FIND_LINKS). Add the index from which the original was installed. Full output: {log}"
        )
    return NotInstalled(f"{program} could not make the environment: {last}", hint=hint)
