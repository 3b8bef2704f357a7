"""Installs the distributions of a recipe in a new virtual environment, by pip with the user's configuration."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from m5ws.errors import M5Error
from m5ws.progress import Progress, report
from m5ws.records.recipe import Recipe

_LOG = "pip.log"
_BUNDLED = ("setuptools", "pip")
"""Distributions that `venv` may install. pip is last, because it uninstalls setuptools."""
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
    report(progress, "making a virtual environment")
    _run([str(base), "-I", "-m", "venv", str(place / "venv")], place, variables, log, "venv", base)
    python = str(place / "venv" / "bin" / "python")
    # -I: distributions on PYTHONPATH do not count as installed. pip's variables and files still apply.
    pip = [python, "-I", "-m", "pip"]
    report(progress, "installing distributions")
    if recipe.requirements:
        lines = place / "requirements.txt"
        lines.write_text("".join(f"{each.line}\n" for each in recipe.requirements if not each.path))
        words = [*pip, "install", "--no-deps", "--no-input", "--disable-pip-version-check", "--requirement", str(lines)]
        for each in recipe.requirements:
            if each.path:
                words += [*(["--editable"] if each.editable else []), str(place / "code" / each.path)]
        _run(words, place, variables, log, "pip", base)
    for name in _BUNDLED:
        if name not in recipe.names:
            _run([*pip, "uninstall", "--yes", name], place, variables, log, "pip", base)


def _run(
    words: Sequence[str], place: Path, environment: Mapping[str, str], log: Path, program: str, base: Path
) -> None:
    """Run a command and log its output. Raises NotInstalled with the line that has the reason."""
    with log.open("a") as kept:
        done = subprocess.run(
            words,
            cwd=place,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=kept,
            stderr=subprocess.STDOUT,
            close_fds=False,
            check=False,
        )
    if done.returncode != 0:
        raise _failed(program, log, base)


def _failed(program: str, log: Path, base: Path) -> NotInstalled:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.upper().startswith("ERROR")]
    last = (errors or lines or ["no error message"])[-1]
    if program == "venv":
        hint = f"{base} needs the standard modules venv and ensurepip; on Debian and Ubuntu: apt install python3-venv."
    else:
        hint = (
            "pip uses the indexes of its configuration (`pip config list`, PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, "
            f"PIP_FIND_LINKS). Add the index from which the original was installed. Full output: {log}"
        )
    return NotInstalled(f"{program} could not make the environment: {last}", hint=hint)
