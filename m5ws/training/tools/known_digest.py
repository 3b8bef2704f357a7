"""Arithmetic with known results, on each processor and GPU of this machine, as a program that prints JSON.

Two kinds of results are computed by matrix products. *Exact* products are of -1, 0 and 1: no step rounds, so their bits
are the same on every machine. *Rounded* products depend on the instructions and libraries of a machine: machines of one
kind agree. The sum over all ranks is of integers, too, so its bits do not depend on the order of the ranks.
"""

import argparse
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import blake3
import msgspec
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from m5ws.environment.observe import hardware
from m5ws.records import portable
from m5ws.records.known import Arithmetic, Computed
from m5ws.training.runtime import facts

_SUM_VALUES = 2**20
_COPY_BYTES = 64 * 2**20
_SIZE = {"cpu": 256, "cuda": 2048}
"""Rows of the square matrices. A processor does hundreds of products in a second."""
_OF_KIND = ("torch", "torch.cuda", "torch.git", "cudnn", "gpu.model", "cpu.capability", "mkl", "onednn")
"""Facts that decide the bits of a product, besides the processor's."""


def integers(count: int, seed: int, bound: int) -> torch.Tensor:
    """Return `count` integers of [0, bound), by a hash of their places: the same on all versions of torch."""
    mixed = (torch.arange(count, dtype=torch.int64) + seed * 7_919) * 0x9E3779B1 & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 16) * 0x45D9F3B & 0xFFFFFFFF
    return (mixed ^ mixed >> 16) % bound


def _matrices(device: torch.device, *, exact: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the factors of the products, in float32 and in bfloat16."""
    size, pairs = _SIZE[device.type], []
    for dtype in (torch.float32, torch.bfloat16):
        values = [integers(size * size, seed, 3 if exact else 2**16) for seed in (1, 2)]
        floats = [(each - 1).float() if exact else each.float() / 2**15 - 1 for each in values]
        first, second = (each.reshape(size, size).to(device, dtype) for each in floats)
        pairs.append((first, second))
    return pairs


def _digest(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> str:
    """Return a digest of the bits of the products, and of the sums of their columns."""
    digest = blake3.blake3()
    for first, second in pairs:
        product = torch.matmul(first, second)
        for result in (product, product.float().sum(0)):
            digest.update(result.contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _compute(place: str, device: torch.device, seconds: float) -> Computed:
    """Compute at one place, again and again until the time is over, and return all digests without repetitions."""
    exact, rounded = (_matrices(device, exact=each) for each in (True, False))
    end_s, repetitions = time.monotonic() + seconds, 0
    digests: tuple[dict[str, None], dict[str, None]] = {}, {}
    while repetitions < 2 or time.monotonic() < end_s:
        repetitions += 1
        digests[0][_digest(exact)] = None
        digests[1][_digest(rounded)] = None
    return Computed(place=place, exact=tuple(digests[0]), rounded=tuple(digests[1]), repetitions=repetitions)


def _places(rank: int, ranks: int, seconds: float, *, has_gpus: bool) -> Iterator[Computed]:
    """Compute on this rank's share of the processors, one after another, and on its GPU."""
    cpus = sorted(os.sched_getaffinity(0))
    own = cpus[rank::ranks]
    for cpu in own:
        os.sched_setaffinity(0, {cpu})
        yield _compute(f"cpu {cpu}", torch.device("cpu"), seconds / len(own))
    os.sched_setaffinity(0, cpus)
    if has_gpus:
        yield _compute(f"gpu {rank}", torch.device("cuda", rank), seconds)


def _all_reduce(rank: int, ranks: int, device: torch.device) -> tuple[int, int]:
    """Return the number of wrong values in sums over all ranks, and the bytes that were summed in a second."""
    base = integers(_SUM_VALUES, 3, 256).float().to(device)
    expected, wrong, rate = base * (ranks * (ranks + 1) // 2), 0, 0.0
    for _ in range(4):
        values = base * (rank + 1)
        dist.barrier()
        begin_s = time.monotonic()
        dist.all_reduce(values)
        wrong += int((values != expected).sum())
        rate = max(rate, values.nbytes / (time.monotonic() - begin_s))
    return wrong, int(rate)


def _copy_rate() -> int:
    """Return the bytes that this process copies in memory in a second: the best of three copies."""
    source = torch.zeros(_COPY_BYTES, dtype=torch.uint8)
    target, best_s = torch.empty_like(source), float("inf")
    for _ in range(3):
        begin_s = time.monotonic()
        target.copy_(source)
        best_s = min(best_s, time.monotonic() - begin_s)
    return int(_COPY_BYTES / best_s)


def _kind() -> dict[str, str | None]:
    """Return the facts that decide the bits of this machine's rounded products."""
    versions, cpu = facts.versions(), hardware.cpu(Path("/"))
    # Libraries cut matrices into blocks by the sizes of caches, which sets the order of sums.
    caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return {
        **{name: versions[name] for name in _OF_KIND},
        **{name: cpu[name] for name in ("cpu.model", "cpu.flags")},
        "cpu.caches": " ".join(hardware.text(size) or "" for size in caches),
        **{name: os.environ.get(name) for name in portable.VARIABLES},
    }


def _rank(rank: int, ranks: int, seconds: float, rendezvous: str, has_gpus: bool) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device("cuda", rank) if has_gpus else torch.device("cpu")
    if has_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpus else "gloo", f"file://{rendezvous}", rank=rank, world_size=ranks)
    computed = list(_places(rank, ranks, seconds, has_gpus=has_gpus))
    wrong, rate = _all_reduce(rank, ranks, device)
    gathered: list[tuple[list[Computed], int] | None] = [None] * ranks
    dist.all_gather_object(gathered, (computed, wrong))
    if rank == 0:
        parts = [part for part in gathered if part is not None]
        result = Arithmetic(
            host=socket.gethostname(),
            kind=_kind(),
            ranks=ranks,
            computed=tuple(each for part, _ in parts for each in part),
            wrong_sums={str(number): count for number, (_, count) in enumerate(parts) if count},
            rates={"all-reduce": rate, "memory": _copy_rate()},
        )
        sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
        sys.stdout.flush()
    dist.destroy_process_group()


def main() -> None:
    """Compute in as many processes as there are GPUs, or else processors, up to eight, and print the result."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    seconds = parser.parse_args().seconds
    has_gpus = torch.cuda.is_available()
    ranks = torch.cuda.device_count() if has_gpus else max(2, min(len(os.sched_getaffinity(0)), 8))
    # Without this variable, deterministic products on GPUs raise an error. Its value can change their bits.
    # https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    # All ranks are on this machine, whatever its name resolves to.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (ranks, seconds, f"{folder}/rendezvous", has_gpus)
        # A process that uses CUDA cannot be forked.
        start_processes(_rank, arguments, nprocs=ranks, start_method="spawn" if has_gpus else "fork")  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
