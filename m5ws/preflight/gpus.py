"""Check of NVIDIA's GPUs: errors of their memory, and Xid errors in the kernel's log since boot.

An Xid of broken hardware or firmware fails. The programs of users cause most others, so these are warnings.

https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
"""

import re
from contextlib import suppress
from pathlib import Path

from m5ws.errors import M5Error, MissingExtra
from m5ws.records.check import Check
from m5ws.supervision import evidence
from m5ws.wording.lists import count

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
_HARDWARE = {"48", "62", "64", "74", "79", "95", "110", "119", "120", "136", "140", "143", "156", "158"}
"""Xids of memory, links, PCI and firmware after which the GPU needs a reset or an inspection.

https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
"""
_REMEDY = "Drain this node, reset or replace the GPU (`nvidia-smi -q -d ECC,ROW_REMAPPER`), and restart the machine."
_REMEDY_OF_PROGRAM = "Look for the program that caused the Xid: `dmesg` shows its process id."


class NoAnswer(M5Error):
    """NVIDIA's management library does not answer."""

    hint = "Run `nvidia-smi` on this node. Drain the node if `nvidia-smi` fails too."


def check_gpus(name: str, system: Path = Path("/")) -> Check:
    """Check each GPU for uncorrected errors, for pages and rows that wait for a reset, and for Xid errors."""
    if not (system / "proc/driver/nvidia/version").exists():
        return Check(name, "not needed", "no NVIDIA GPU with a driver")
    try:
        import pynvml as nvml
    except ModuleNotFoundError as error:
        raise MissingExtra("reading the errors of GPUs", "supervise") from error
    try:
        nvml.nvmlInit()
        number = nvml.nvmlDeviceGetCount()
        faults = [f"GPU {index}: {fault}" for index in range(number) for fault in _faults(index)]
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise NoAnswer(f"the driver does not answer: {error}") from error
    log = None
    with suppress(OSError):
        log = evidence.read_kernel_log(system / "dev/kmsg")
    xids = dict.fromkeys(_XID.findall(log or ""))
    faults += [f"Xid {xid} of {bus}" for bus, xid in xids if xid in _HARDWARE]
    others = [f"Xid {xid} of {bus}" for bus, xid in xids if xid not in _HARDWARE]
    unread = ["the kernel's log is not readable, so Xid errors are unknown"] if log is None else []
    detail = "; ".join((count(number, "GPU"), *unread, *faults, *others))
    if faults:
        return Check(name, "failed", detail, _REMEDY)
    return Check(name, "warning", detail, _REMEDY_OF_PROGRAM) if others else Check(name, "ok", detail)


def _faults(index: int) -> list[str]:
    """Return the faults of one GPU. A counter that the model lacks is no fault."""
    import pynvml as nvml

    handle, faults = nvml.nvmlDeviceGetHandleByIndex(index), list[str]()
    with suppress(nvml.NVMLError):
        kind = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        errors = nvml.nvmlDeviceGetTotalEccErrors(handle, *kind)
        faults += [f"{errors} uncorrected ECC errors"] if errors else []
    with suppress(nvml.NVMLError):
        faults += ["pages wait for retirement"] if nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle) else []
    with suppress(nvml.NVMLError):
        _, _, is_pending, has_failed = nvml.nvmlDeviceGetRemappedRows(handle)
        faults += ["rows wait for remapping"] if is_pending else []
        faults += ["remapping of rows failed"] if has_failed else []
    return faults
