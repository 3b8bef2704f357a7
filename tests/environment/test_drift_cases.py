"""Changes of a whole environment before a replay: an alarm for each that can reach the run, and for no other.

The pinned side is the environment of a run on GPUs, with the modules and libraries that its ranks loaded.
"""

from collections.abc import Callable

import msgspec
import pytest

from m5ws.environment import usage
from m5ws.environment.drift import conflicts
from m5ws.environment.observe.machine import Machine
from m5ws.environment.usage import EnvironmentSide, Usage
from m5ws.records.environment import Observed, Origin

_LOADED = {
    "torch": "/env/torch/lib/libtorch.so",
    "nccl": "/env/nvidia/nccl/lib/libnccl.so.2",
    "cudnn": "/env/nvidia/cudnn/lib/libcudnn.so.9",
}
_FACTS: dict[str, str | None] = {
    **{f"loaded.{name}": path for name, path in _LOADED.items()},
    "owner.torch": "torch", "owner.nccl": "nvidia-nccl-cu12", "owner.cudnn": "nvidia-cudnn-cu12", "mkl": "2025.3",
    "torch": "2.13.0+cu128", "torch.cuda": "12.8", "nccl": "2.27.7", "cudnn": "91002", "threads": "1", "world": "8",
    "python": "3.11.7", "os": "Debian 12", "kernel": "6.1.0-18", "glibc": "2.36", "platform": "linux-x86_64",
    "cpu.model": "Intel Xeon 8488C", "cpu.flags": "avx2 avx512f", "cpu.count": "96", "cpu.capability": "AVX512",
    "gpu.model": "NVIDIA H100", "gpu.count": "8", "gpu.driver": "570.86", "nccl.algorithms": "RING",
    "container": "podman", "container.source": "podman 4.3.1", "container.image": f"ghcr.io/team/a@sha256:{'a' * 64}",
    "libfabric": "1.22.0", "efa.driver": "2.13", "efa.installer": "1.38", "aws-ofi-nccl": "1.14.0",
    "variable.OMP_NUM_THREADS": "1", "variable.NCCL_ALGO": "Ring", "variable.CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "variable.PYTHONHASHSEED": "0", "variable.NVIDIA_TF32_OVERRIDE": None,
}  # fmt: skip
_DISTRIBUTIONS = {
    "torch": "2.13.0", "numpy": "2.2.6", "deepspeed": "0.19.8", "transformers": "4.57.0", "tokenizers": "0.22.0",
    "nvidia-nccl-cu12": "2.27.7", "nvidia-cudnn-cu12": "9.10.2.21", "nvidia-cuda-nvcc-cu12": "12.8.93",
    "ruff": "0.17.0", "pandas": "2.3.0", "wandb": "0.22.0", "pip": "26.1", "jupyterlab": "4.4.0",
}  # fmt: skip
_RUN = Observed(
    facts=_FACTS,
    distributions=_DISTRIBUTIONS,
    origins={"flash": Origin(kind="vcs", url="https://example.org/flash.git", commit="1" * 40)},
    provides={name: (name.replace("nvidia-", "nvidia/").partition("-cu12")[0],) for name in _DISTRIBUTIONS},
)
_USED = Usage(
    places=frozenset({"torch", "numpy", "deepspeed", "transformers", "tokenizers", "nvidia/nccl", "nvidia/cudnn"}),
    libraries=frozenset({*(f"loaded.{name}" for name in _LOADED)}),
)
Change = Callable[[Observed], Observed]


def facts(changed: dict[str, str | None]) -> Change:
    """Return a change of facts."""
    return lambda run: msgspec.structs.replace(run, facts=run.facts | changed)


def installed(name: str, version: str | None, *provides: str) -> Change:
    """Return a change of a distribution; None removes it. `provides` has the places of a new distribution."""

    def changed(run: Observed) -> Observed:
        merged = {each: old for each, old in run.distributions.items() if each != name}
        places = {name: provides or (name,)} | (run.provides or {})
        new = merged if version is None else merged | {name: version}
        return msgspec.structs.replace(run, distributions=new, provides=places)

    return changed


_HARMLESS: dict[str, Change] = {
    "a package that the run does not load is installed": installed("rich", "14.0"),
    "a package that the run does not load is upgraded": installed("pandas", "2.4.0"),
    "a package that the run does not load is removed": installed("wandb", None),
    "a linter is upgraded": installed("ruff", "0.18.0"),
    "pip is upgraded": installed("pip", "27.0"),
    "a notebook server is upgraded": installed("jupyterlab", "4.5.0"),
    "type stubs are installed": installed("types-requests", "2.32"),
    "the kernel gets a patch": facts({"kernel": "6.1.0-20"}),
    "more processors, with threads set": facts({"cpu.count": "192"}),
    "fewer processors, with threads set": facts({"cpu.count": "8"}),
    "NCCL writes a log": facts({"variable.NCCL_DEBUG": "INFO"}),
    "NCCL writes its log into a file": facts({"variable.NCCL_DEBUG_FILE": "/tmp/nccl"}),
    "the compiled operators are in another folder": facts({"variable.TORCH_EXTENSIONS_DIR": "/scratch/operators"}),
    "torch logs more": facts({"variable.TORCH_CPP_LOG_LEVEL": "INFO"}),
    "the flight recorder is on": facts({"variable.TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}),
    "another visible GPU of the same model": facts({"variable.CUDA_VISIBLE_DEVICES": "3"}),
    "libfabric, which no rank loaded, is upgraded": facts({"libfabric": "2.1.0"}),
    "the EFA driver, which no rank used, is upgraded": facts({"efa.driver": "2.15"}),
    "the NCCL plugin, which no rank loaded, is upgraded": facts({"aws-ofi-nccl": "1.15.0"}),
    "the engine that started the same image is upgraded": facts({"container.source": "podman 5.4.0"}),
    "another engine started the same image": facts({"container": "docker", "container.source": "docker 28.2"}),
    "the same image by another name": facts({"container.image": f"registry.local/team/a@sha256:{'a' * 64}"}),
}
_HARMFUL: dict[str, tuple[Change, str]] = {
    "torch is upgraded": (installed("torch", "2.14.1"), "distribution.torch"),
    "numpy is upgraded": (installed("numpy", "2.3.0"), "distribution.numpy"),
    "the tokenizer's library is upgraded": (installed("tokenizers", "0.23.0"), "distribution.tokenizers"),
    "a loaded package is removed": (installed("transformers", None), "distribution.transformers"),
    "a new package takes the place of a loaded module": (
        installed("my-transformers", "1.0", "transformers"),
        "distribution.my-transformers",
    ),
    "the compiler of kernels is upgraded": (
        installed("nvidia-cuda-nvcc-cu12", "12.9.0"),
        "distribution.nvidia-cuda-nvcc-cu12",
    ),
    "NCCL's wheel is upgraded": (installed("nvidia-nccl-cu12", "2.28.0"), "distribution.nvidia-nccl-cu12"),
    "another NCCL is loaded": (facts({"nccl": "2.28.3"}), "nccl"),
    "Python is upgraded": (facts({"python": "3.11.9"}), "python"),
    "the C library is upgraded": (facts({"glibc": "2.41"}), "glibc"),
    "the driver of the GPUs is upgraded": (facts({"gpu.driver": "580.10"}), "gpu.driver"),
    "another model of GPU": (facts({"gpu.model": "NVIDIA H200"}), "gpu.model"),
    "another model of processor": (facts({"cpu.model": "AMD EPYC 9R14"}), "cpu.model"),
    "another instruction set": (facts({"cpu.capability": "AVX2"}), "cpu.capability"),
    "more threads": (facts({"threads": "8"}), "threads"),
    "another number of threads for OpenMP": (facts({"variable.OMP_NUM_THREADS": "8"}), "variable.OMP_NUM_THREADS"),
    "more processors, without a number of threads": (
        facts({"cpu.count": "192", "variable.OMP_NUM_THREADS": None}),
        "cpu.count",
    ),
    "TF32 is forced": (facts({"variable.NVIDIA_TF32_OVERRIDE": "1"}), "variable.NVIDIA_TF32_OVERRIDE"),
    "another algorithm of NCCL": (facts({"variable.NCCL_ALGO": "Tree"}), "variable.NCCL_ALGO"),
    "another workspace of cuBLAS": (
        facts({"variable.CUBLAS_WORKSPACE_CONFIG": ":16:8"}),
        "variable.CUBLAS_WORKSPACE_CONFIG",
    ),
    "another hash seed": (facts({"variable.PYTHONHASHSEED": "1"}), "variable.PYTHONHASHSEED"),
    "another image": (facts({"container.image": f"ghcr.io/team/a@sha256:{'b' * 64}"}), "container.image"),
    "a library is loaded in place of another": (facts({"variable.LD_PRELOAD": "/opt/libm.so"}), "variable.LD_PRELOAD"),
    "a copy of NCCL outside of its distribution is loaded": (
        facts({"owner.nccl": None, "loaded.nccl": "/usr/lib/libnccl.so.2"}),
        "loaded nccl",
    ),
    "a fact that no rule knows": (facts({"quantum.mode": "on"}), "quantum.mode"),
}


def _alarms(change: Change) -> list[str]:
    pinned = EnvironmentSide(observed=_RUN, usage=_USED)
    return [each.name for each in usage.before_launch(pinned, change(_RUN)) if each.rating != "cannot"]


def test_a_loaded_wheel_with_a_local_version_is_no_difference() -> None:
    assert _RUN.facts["torch"] == f"{_RUN.distributions['torch']}+cu128"
    assert conflicts(_RUN) == () and _alarms(lambda run: run) == []


def test_another_host_another_user_and_another_locale_are_not_observed() -> None:
    names = ("HOSTNAME", "USER", "LANG", "LC_ALL", "TZ", "TERM", "SLURM_JOB_ID")
    here, there = ({"PATH": "/usr/bin"} | dict.fromkeys(names, value) for value in "ab")
    assert Machine(base=here).observe(here) == Machine(base=there).observe(there)


@pytest.mark.parametrize("name", _HARMLESS)
def test_no_alarm_for_a_change_that_cannot_reach_the_run(name: str) -> None:
    assert _alarms(_HARMLESS[name]) == []


@pytest.mark.parametrize("name", _HARMFUL)
def test_an_alarm_names_each_change_that_can_reach_the_run(name: str) -> None:
    change, expected = _HARMFUL[name]
    assert expected in _alarms(change)
