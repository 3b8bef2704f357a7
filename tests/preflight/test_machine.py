"""Checks of a machine: each fails where a run would fail, and names the numbers."""

import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from m5ws.environment.observe import hardware
from m5ws.errors import M5Error
from m5ws.preflight import gpus, machine, node
from m5ws.preflight.needs import Needs, Place
from m5ws.records.check import Check
from m5ws.store.local import LocalStore

_FREE = 2**30


class _Clock(LocalStore):
    """A store whose clock differs from the clock of this machine."""

    skew_s = 0.0

    def now(self) -> float:
        return time.time() + self.skew_s


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_folders_on_one_file_system_need_their_space_together(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    part = int(free.f_bavail * free.f_frsize * 0.6)
    missing = tmp_path / "no" / "folder"
    one, both = (Place(use=use, path=missing, size_bytes=part) for use in ("work", "the store"))
    assert machine.check_disk("disk", (one,)).state == "warning"
    check = machine.check_disk("disk", (one, both))
    assert check.state == "failed" and "work, the store" in check.detail and str(tmp_path) in check.remedy


@pytest.mark.parametrize(("skew_s", "state"), [(0, "ok"), (9, "warning"), (-9, "warning"), (90, "failed")])
def test_a_clock_is_compared_with_the_clock_of_the_store(tmp_path: Path, skew_s: float, state: str) -> None:
    store = _Clock(tmp_path)
    store.skew_s = skew_s
    assert machine.check_clock("clock", store).state == state


def test_memory_for_a_copy_of_the_state_is_limited_by_the_cgroups_around_the_process(tmp_path: Path) -> None:
    system = _write(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 8388608 kB\n",
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/step/memory.current": "0\n",
            "sys/fs/cgroup/job/memory.max": f"{3 * _FREE}\n",
            "sys/fs/cgroup/job/memory.current": f"{_FREE}\n",
        },
    )
    fitting, large = (Needs(run="7c1d", checkpoint_bytes=size * _FREE, nodes=2) for size in (3, 5))
    assert machine.check_memory("memory", fitting, system).state == "ok"
    check = machine.check_memory("memory", large, system)
    assert check.state == "failed"
    assert check.detail == "8.0 GiB free, 2.0 GiB free in the cgroup, 2.5 GiB for a copy of the state of run 7c1d"


def test_too_little_shared_memory_for_all_ranks_fails() -> None:
    system = os.statvfs("/dev/shm")
    ranks = system.f_blocks * system.f_frsize // (64 * 2**20) + 1
    assert machine.check_shared_memory("shared memory", ranks).state == "failed"


def test_efa_is_checked_where_it_is_wanted(tmp_path: Path) -> None:
    wanted = Needs(wanted={"efa": "2"})
    assert machine.check_efa("efa", Needs(), tmp_path).state == "not needed"
    assert machine.check_efa("efa", wanted, tmp_path).state == "failed"
    system = _write(
        tmp_path,
        {"sys/class/infiniband/a/ports/1/state": "4: ACTIVE", "sys/class/infiniband/b/ports/1/state": "1: DOWN"},
    )
    assert machine.check_efa("efa", wanted, system).detail == "not active: b"


def test_gpus_without_a_driver_that_answers_are_no_pass(tmp_path: Path) -> None:
    assert gpus.check_gpus("gpus", tmp_path).state == "not needed"
    system = _write(tmp_path, {"proc/driver/nvidia/version": "NVRM version"})
    with pytest.raises(M5Error, match="does not answer"):
        gpus.check_gpus("gpus", system)


def test_errors_of_gpus_and_of_the_kernels_log_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for NVIDIA's library: this machine has no GPU."""
    nvml = ModuleType("pynvml")
    answers = {"Init": None, "Shutdown": None, "DeviceGetCount": 1, "DeviceGetHandleByIndex": "handle",
               "DeviceGetTotalEccErrors": 3, "DeviceGetRetiredPagesPendingStatus": 0,
               "DeviceGetRemappedRows": (0, 0, 1, 0)}  # fmt: skip
    for name, answer in answers.items():
        setattr(nvml, f"nvml{name}", lambda *_, answer=answer: answer)
    nvml.__dict__.update(NVMLError=RuntimeError, NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1, NVML_VOLATILE_ECC=0)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    log = "4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 13, Graphics Exception\n"
    log += "4,2,3,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    system = _write(tmp_path, {"proc/driver/nvidia/version": "NVRM version", "dev/kmsg": log})
    check = gpus.check_gpus("gpus", system)
    assert check.state == "failed"
    faults = ("GPU 0: 3 uncorrected ECC errors", "GPU 0: rows wait for remapping", "Xid 79 of 0000:3b:00")
    assert check.detail == "; ".join(("1 GPU", *faults, "Xid 13 of 0000:3b:00"))
    nvml.__dict__.update(nvmlDeviceGetTotalEccErrors=lambda *_: 0, nvmlDeviceGetRemappedRows=lambda *_: (0, 0, 0, 0))
    _write(system, {"dev/kmsg": log.partition("\n")[0]})
    check = gpus.check_gpus("gpus", system)
    assert (check.state, check.detail) == ("warning", "1 GPU; Xid 13 of 0000:3b:00")


def test_a_failed_check_is_repeated_before_a_node_is_blamed() -> None:
    answers = iter([Check("a", "failed", "first", "drain"), Check("a", "ok", "second")])
    check = node._repeated("a", lambda _: next(answers))
    assert (check.state, check.detail) == ("warning", "second; passed when repeated, after: first")
    check = node._repeated("a", lambda name: Check(name, "failed", "always", "drain"))
    assert check.state == "failed"


def test_free_memory_is_that_of_a_container_with_cgroups_of_version_1(tmp_path: Path) -> None:
    limited = _write(
        tmp_path / "limited",
        {
            "proc/meminfo": f"MemAvailable: {4 * _FREE // 1024} kB\n",
            "proc/self/cgroup": "4:memory:/job\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * _FREE}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * _FREE}\n",
            "sys/fs/cgroup/memory/memory.stat": f"inactive_file 7\ntotal_inactive_file {_FREE}\n",
        },
    )
    assert hardware.free_memory(limited) == {"free": 4 * _FREE, "free in the cgroup": 2 * _FREE}
    _write(limited, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"})
    assert hardware.free_memory(limited) == {"free": 4 * _FREE}
    assert hardware.free_memory(tmp_path) == {}
