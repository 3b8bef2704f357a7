"""Level "portable": equal bits on processors of other widths and vendors, which this one imitates."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from m5ws.records import determinism
from m5ws.records import portable as levels
from m5ws.records.environment import Determinism
from m5ws.records.ledger import RankEnded, RankStarted
from m5ws.training import determinism as settings

SCRIPTS = Path(__file__).parent / "scripts"
EMULATOR = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
# MKL calls this function to check for an Intel processor; on AMD it never uses its AVX-512 kernels.
VENDOR = "int mkl_serv_intel_cpu_true(void) { return %d; }\n"
WIDTH = torch.backends.cpu.get_cpu_capability()

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or WIDTH not in ("AVX2", "AVX512"),
    reason="NOT TESTED: level portable needs an x86-64 processor with AVX2",
)


def trained(level: Any, dtype: str = "float32", *emulate: str, **variables: str) -> str:
    """Return the vector capability, and the digest of the state, of a training under `level`.

    `variables` override the level's; `emulate` is a command that runs a program on another
    processor.
    """
    environment = os.environ | determinism.environment(Determinism(level=level)) | variables
    python = os.path.realpath(sys.executable) if emulate else sys.executable
    if emulate:
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [*emulate, python, str(SCRIPTS / "portable_gpt.py"), level, dtype]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def vendors(folder: Path) -> list[dict[str, str]]:
    """Return variables that make MKL treat this processor as one of another vendor, and as Intel's."""
    found = []
    for answer in (0, 1):
        source, library = folder / f"{answer}.c", folder / f"{answer}.so"
        source.write_text(VENDOR % answer)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        found.append({"LD_PRELOAD": str(library)})
    return found


@pytest.mark.soak
@pytest.mark.skipif(WIDTH != "AVX512", reason="NOT TESTED: this processor has one vector width alone")
def test_without_the_level_other_vector_widths_give_other_bits() -> None:
    assert trained("strict").split()[1] != trained("strict", ATEN_CPU_CAPABILITY="avx2").split()[1]


@pytest.mark.skipif(shutil.which("cc") is None, reason="NOT TESTED: no C compiler to imitate another vendor with")
@pytest.mark.parametrize(
    "dtype", [pytest.param("float32", marks=pytest.mark.soak), pytest.param("bfloat16", marks=pytest.mark.long)]
)
def test_processors_of_both_vendors_give_equal_bits(tmp_path: Path, dtype: str) -> None:
    amd, intel = vendors(tmp_path)
    first, second = (trained("portable", dtype, **vendor) for vendor in (amd, intel))
    assert first == second and first.startswith("AVX2")
    if WIDTH == "AVX512" and dtype == "float32":
        first, second = (trained("strict", dtype, **vendor) for vendor in (amd, intel))
        assert first != second


@pytest.mark.soak
@pytest.mark.skipif(EMULATOR is None, reason="NOT TESTED on an emulated processor: qemu-x86_64 is not installed")
@pytest.mark.parametrize(("processor", "dtype"), [("Haswell", "float32"), ("EPYC-v2", "bfloat16")])
def test_an_emulated_processor_gives_equal_bits(processor: str, dtype: str) -> None:
    assert EMULATOR is not None
    assert trained("portable", dtype, EMULATOR, "-cpu", processor) == trained("portable", dtype)


def test_square_roots_are_correctly_rounded_in_every_form() -> None:
    code = """
import math
import torch
from m5ws.training import determinism
determinism.replace_square_roots()
x = torch.cat([torch.arange(1, 20001) * 1.37e-3, torch.tensor([0.0, -0.0, 1e-45, 3e38, math.inf])])
right = torch.tensor([math.sqrt(value) for value in x.double().tolist()], dtype=torch.float64).float().view(torch.int32)
held = x.clone()
held.sqrt_()
(grouped,) = torch._foreach_sqrt([x])
for found in (x.sqrt(), held, torch.sqrt(x, out=torch.empty(1)), grouped):
    assert found.view(torch.int32).equal(right)
assert torch.tensor(-1.0).sqrt().isnan() and torch.tensor([4, 9]).sqrt().tolist() == [2.0, 3.0]
assert torch.tensor(-4 + 0j).sqrt() == 2j
for cut in (lambda: torch.tensor([4, 9]).sqrt_(), lambda: torch.sqrt(x, out=torch.empty(1, dtype=torch.int64))):
    try:
        cut()
    except RuntimeError as error:
        assert "can't be cast" in str(error)
    else:
        raise AssertionError("a root was cut to an integer")
y = torch.full((3,), 4.0, requires_grad=True)
y.sqrt().sum().backward()
assert y.grad.tolist() == [0.25] * 3
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_obstacle_to_the_portable_level_is_named() -> None:
    assert "ATEN_CPU_CAPABILITY is None" in (settings.obstacle({}) or "")
    assert "MKL_CBWR is 'AVX2'" in (settings.obstacle(levels.VARIABLES | {"MKL_CBWR": "AVX2"}) or "")
    found = settings.obstacle(levels.VARIABLES)
    assert found is None if WIDTH == "AVX2" else "torch uses AVX512" in (found or "")


def test_a_rank_records_the_portable_level(runner: Any) -> None:
    runner.determinism = Determinism(level="portable")
    attempt = runner(str(SCRIPTS / "plain.py"), "well")
    assert attempt.status == 0, attempt.log()
    (started,) = attempt.of(RankStarted)
    assert (started.facts["cpu.portable"], started.facts["cpu.capability"]) == (settings.BASELINE, "AVX2")


@pytest.mark.long
def test_a_rank_without_the_portable_level_does_not_start_the_script(runner: Any) -> None:
    runner.determinism = Determinism(level="portable")
    attempt = runner(str(SCRIPTS / "plain.py"), "well", environ={"MKL_CBWR": "AVX2"})
    (failure,) = [event.failure for event in attempt.of(RankEnded)]
    assert attempt.status == 2 and failure is not None
    assert failure.type == "NotPortable" and "MKL_CBWR" in failure.text
    assert "called as __main__" not in attempt.log()
