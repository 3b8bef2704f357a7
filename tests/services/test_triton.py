"""The kernel of fingerprints in Triton, with torch for CUDA: by Triton's interpreter, compiled, and on a GPU."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import loud_skip
from tests.services.conftest import Versions
from tests.support.paths import ROOT

pytestmark = pytest.mark.services

_SCRIPTS = Path(__file__).parent / "scripts"
_TESTS = (_SCRIPTS / "triton_kernel.py", ROOT / "tests" / "training" / "test_fingerprint.py")


def _run(python: Path, folder: Path, *arguments: str | Path, interpret: bool = False) -> str:
    """Return the output of a command of Python, which must succeed; Triton's cache is in `folder`."""
    variables = os.environ | {"TRITON_INTERPRET": str(int(interpret)), "TRITON_CACHE_DIR": str(folder / "triton")}
    done = subprocess.run(
        [python, *arguments], cwd=ROOT, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def _run_tests(python: Path, folder: Path, *, interpret: bool = False) -> str:
    options = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", "-k", "triton"]
    # The interpreter takes a tenth of a second for a launch. `make test` draws all examples, by the other ways.
    options += ["--hypothesis-profile", "few"] if interpret else []
    return _run(python, folder, "-m", "pytest", *options, "--basetemp", folder / "tests", *_TESTS, interpret=interpret)


@pytest.mark.soak
def test_the_triton_interpreter_computes_the_sums_of_numpy(
    interpreter: Callable[[Versions], Path], tmp_path: Path
) -> None:
    output = _run_tests(interpreter("triton"), tmp_path, interpret=True)
    assert re.search(r"^\d+ passed", output, re.MULTILINE) and "skipped" not in output, output


@pytest.mark.parametrize(
    "capability", [pytest.param(80, marks=pytest.mark.soak), 90, pytest.param(100, marks=pytest.mark.soak)]
)
def test_the_kernel_compiles_without_a_gpu(
    interpreter: Callable[[Versions], Path], tmp_path: Path, capability: int
) -> None:
    ptx = _run(interpreter("triton"), tmp_path, _SCRIPTS / "triton_compiled.py", str(capability))
    assert f".target sm_{capability}" in ptx
    # Loads of 16 bytes: for words of 1, 2 and 4 bytes, and of 8, each with and without rows.
    assert len(re.findall(r"ld\.global\.v4\.b32", ptx)) == 6 and len(re.findall(r"ld\.global\.v2\.b64", ptx)) == 2
    assert len(re.findall(r"atom\.\S*add\.u64", ptx)) == 1


def test_the_installed_triton_version_matches_the_constraints() -> None:
    line = (Path(__file__).parent / "triton.txt").read_text().splitlines()[-1]
    assert line in (ROOT / "constraints.txt").read_text().splitlines()


@pytest.mark.gpu
def test_a_gpu_computes_the_sums_of_numpy(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        loud_skip("fingerprints on a GPU: torch finds no CUDA device")
    _run_tests(Path(sys.executable), tmp_path)
