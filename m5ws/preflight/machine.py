"""Checks of this machine without torch: disks, shared memory, memory, clock, open files, and EFA.

`system` is the root folder of /proc, /sys and /dev.
"""

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from m5ws.environment.observe import hardware
from m5ws.preflight.needs import Needs, Place
from m5ws.records.check import Check, State
from m5ws.store.interface import ObjectStore
from m5ws.wording.lists import count

_SKEW_WARNING_S, _SKEW_FAILED_S = 5.0, 60.0
_SHARED_OF_RANK_BYTES, _SHARED_OF_WORKERS_BYTES = 64 * 2**20, 2**30
_FILES, _FILES_OF_RANK = 256, 64
"""Open files of a process, and of its connections and data loader for each rank of the machine."""
_PROGRAM_S = 20.0


def check_disk(name: str, places: Sequence[Place]) -> Check:
    """Check free space and inodes of each file system, for all folders of a run on the file system together."""
    details, remedy = list[str](), ""
    state: State = "ok"
    for folder, uses in _by_file_system(places):
        free = os.statvfs(folder)
        free_bytes, needed_bytes = free.f_bavail * free.f_frsize, sum(use.size_bytes for use in uses)
        files = sum(use.files for use in uses)
        has_inodes = free.f_files > 0  # Some file systems have no fixed number.
        if free_bytes < 2 * needed_bytes or (has_inodes and free.f_favail < 2 * files):
            is_short = free_bytes < needed_bytes or (has_inodes and free.f_favail < files)
            state = "failed" if is_short or state == "failed" else "warning"
            remedy = f"Free space in {folder}, or set [run] work_dir or [store] in m5ws.toml to a larger disk."
        inodes = f", {free.f_favail:,} of {files:,} inodes" if has_inodes and files else ""
        uses_text = ", ".join(use.use for use in uses)
        details.append(f"{size(free_bytes)} free of {size(needed_bytes)} needed{inodes} for {uses_text}")
    return Check(name, state, "; ".join(details), remedy)


def _by_file_system(places: Sequence[Place]) -> Iterator[tuple[Path, list[Place]]]:
    """Yield an existing folder of each file system, with the places there."""
    groups: dict[int, tuple[Path, list[Place]]] = {}
    for place in places:
        folder = next(outer for outer in (place.path, *place.path.parents) if outer.exists())
        groups.setdefault(folder.stat().st_dev, (folder, []))[1].append(place)
    yield from groups.values()


def check_shared_memory(name: str, ranks: int) -> Check:
    """Check the size of /dev/shm, where NCCL and the workers of data loaders exchange data."""
    found = os.statvfs("/dev/shm")  # noqa: S108  the size of the file system, not a file in it
    size_bytes, needed_bytes = found.f_blocks * found.f_frsize, ranks * _SHARED_OF_RANK_BYTES
    detail = f"{size(size_bytes)}, {size(needed_bytes)} needed for {count(ranks, 'rank')}"
    remedy = "Mount a larger /dev/shm. In a container, use --shm-size or --ipc=host."
    if size_bytes < needed_bytes:
        return Check(name, "failed", detail, remedy)
    if size_bytes < _SHARED_OF_WORKERS_BYTES:
        return Check(name, "warning", f"{detail}; workers of a data loader often need 1 GiB", remedy)
    return Check(name, "ok", detail)


def check_memory(name: str, needs: Needs, system: Path = Path("/")) -> Check:
    """Check free memory, and the limit of the cgroup, for the copy of the state that a save makes."""
    known = hardware.free_memory(system)
    texts = [f"{size(value)} {label}" for label, value in known.items()]
    if needs.run is None:
        return Check(name, "ok", f"{', '.join(texts)}; no run shows the size of the state yet")
    detail = f"{', '.join(texts)}, {size(needs.state_bytes)} for a copy of the state of run {needs.run}"
    least = min(known.values(), default=None)
    if least is not None and least < needs.state_bytes:
        return Check(name, "failed", detail, "End other programs, raise the limit of the job, or use more nodes.")
    return Check(name, "ok", detail)


def check_clock(name: str, store: ObjectStore) -> Check:
    """Compare the clock of this machine with the clock of the store."""
    begin_s = time.time()
    now_s, end_s = store.now(), time.time()
    # The store read its clock between the two times, and rounds it to a second.
    skew_s = max(0.0, begin_s - now_s - 1, now_s - end_s)
    detail = f"{skew_s:.1f} s from the clock of the store"
    remedy = "Let chrony or systemd-timesyncd set the clock: `timedatectl set-ntp true`."
    if skew_s > _SKEW_FAILED_S:
        return Check(name, "failed", detail, remedy)
    return Check(name, "warning", detail, remedy) if skew_s > _SKEW_WARNING_S else Check(name, "ok", detail)


def check_open_files(name: str, ranks: int) -> Check:
    """Check the limit of open files of a process, which the ranks inherit."""
    limit, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], _FILES + _FILES_OF_RANK * ranks
    is_enough = limit == resource.RLIM_INFINITY or limit >= needed
    detail = f"{'no limit' if limit == resource.RLIM_INFINITY else f'{limit:,}'}, {needed:,} needed"
    return Check(name, "ok", detail) if is_enough else Check(name, "failed", detail, f"Run `ulimit -n {needed}`.")


def check_efa(name: str, needs: Needs, system: Path = Path("/")) -> Check:
    """Check that each EFA device has an active port, and that libfabric has its provider, if the run wants EFA."""
    if not {"efa", "libfabric", "ofi-nccl"} & needs.wanted.keys():
        return Check(name, "not needed", "[environment] wanted names no EFA")
    devices = sorted((system / "sys/class/infiniband").glob("*"))
    ports = {device.name: hardware.text(device / "ports/1/state") or "" for device in devices}
    remedy = "Run `m5ws doctor` for the driver, and `fi_info -p efa` for the provider of libfabric."
    idle = [device for device, state in ports.items() if "ACTIVE" not in state]
    if idle or not ports:
        return Check(name, "failed", f"not active: {', '.join(idle)}" if idle else "no device", remedy)
    if program := shutil.which("fi_info"):
        done = subprocess.run([program, "-p", "efa"], capture_output=True, timeout=_PROGRAM_S, check=False)
        if done.returncode:
            return Check(name, "failed", f"{count(len(ports), 'active device')}, and libfabric has no provider", remedy)
    return Check(name, "ok", count(len(ports), "active device"))


def size(size_bytes: int) -> str:
    """Return a size in GiB, or in MiB below."""
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"
