"""Environments with frameworks, on top of the tests' own."""

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

import m5ws
from tests.conftest import loud_skip

_HERE = Path(__file__).parent

Versions = Literal[
    "frameworks",
    "previous_frameworks",
    "transcripts",
    "torchtune",
    "previous_torchtune",
    "torchtitan",
    "previous_torchtitan",
    "triton",
]
"""The file with the versions of all packages."""

_BELOW: dict[Versions, Versions] = {
    "previous_frameworks": "frameworks",
    "transcripts": "frameworks",
    "previous_torchtune": "torchtune",
    "torchtitan": "frameworks",
    "previous_torchtitan": "torchtitan",
}
"""The environment on top of which another one is made."""


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Versions], Path]:
    """The interpreter of an environment with these packages, on top of the tests' own and of the one in `_BELOW`."""

    @cache
    def make(versions: Versions) -> Path:
        place = tmp_path_factory.mktemp(versions) / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, capture_output=True)
        site = place / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        below: list[str | Path] = [sysconfig.get_path("purelib"), Path(m5ws.__file__).parent.parent]
        if versions in _BELOW:
            # Python reads the .pth files of an environment's own folder alone, and not those of the folders below.
            folder = make(_BELOW[versions]).parents[1] / site.relative_to(place)
            below = [folder, *(folder / "below.pth").read_text().splitlines()]
        (site / "below.pth").write_text("".join(f"{path}\n" for path in below))
        command = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
        done = subprocess.run([*command, "--requirement", _HERE / f"{versions}.txt"], capture_output=True, text=True)
        if done.returncode:
            loud_skip(f"pip could not install {versions}.txt: {done.stderr[-300:]}")
        return place / "bin" / "python"

    return make
