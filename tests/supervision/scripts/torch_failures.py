"""Real failures of torch on a machine without a GPU: of one process, of two ranks on gloo, and of torchrun."""

import datetime as dt
import os
import resource
import signal
import socket
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.data
from torch import nn

torch.set_num_threads(1)


def _shapes() -> None:
    nn.Linear(4, 8)(torch.zeros(2, 5))


def _broadcast() -> None:
    torch.zeros(3) + torch.zeros(4)


def _view() -> None:
    torch.zeros(6).view(4, 2)


def _stack() -> None:
    torch.stack([torch.zeros(2), torch.zeros(3)])


def _labels() -> None:
    nn.functional.cross_entropy(torch.zeros(4, 3), torch.zeros(5, dtype=torch.long))


def _convolution() -> None:
    nn.Conv2d(3, 8, 3)(torch.zeros(1, 4, 9, 9))


def _dtypes() -> None:
    nn.Linear(4, 8)(torch.zeros(2, 4, dtype=torch.float64))


def _no_kernel_for_dtype() -> None:
    nn.functional.softmax(torch.zeros(3, dtype=torch.int64), dim=0)


def _devices() -> None:
    torch.cat([torch.zeros(2), torch.zeros(2, device="meta")])


def _state_dict() -> None:
    nn.Linear(4, 8).load_state_dict(nn.Linear(4, 9).state_dict())


def _missing_keys() -> None:
    nn.Linear(4, 8).load_state_dict({})


def _optimizer_state() -> None:
    model = nn.Linear(4, 8)
    whole = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.SGD([model.weight], lr=0.1).load_state_dict(whole.state_dict())


class _Data(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, fail: Callable[[], object]) -> None:
        self._fail = fail

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        self._fail()
        return torch.zeros(1)


def _load(fail: Callable[[], object]) -> None:
    for _ in torch.utils.data.DataLoader(_Data(fail), num_workers=1, timeout=60):
        pass


def _killed_worker() -> None:
    _load(lambda: os.kill(os.getpid(), signal.SIGKILL))


def _worker_without_file() -> None:
    _load(lambda: Path("missing.bin").read_bytes())


def _worker_without_key() -> None:
    _load(lambda: dict[str, int]()["tokens"])


def _segmentation_fault_of_worker() -> None:
    _load(lambda: os.kill(os.getpid(), signal.SIGSEGV))


def _compile() -> None:
    os.environ |= {"CXX": "/bin/false", "TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_CACHE_DIR": os.getcwd()}
    torch.compile(lambda x: (x * 2).sin())(torch.zeros(64))


def _extension() -> None:
    from torch.utils import cpp_extension

    Path("broken.cpp").write_text("int main( {")
    cpp_extension.load("broken", ["broken.cpp"], build_directory=os.getcwd())


def _no_gpu() -> None:
    torch.zeros(1, device="cuda")


def _host_out_of_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    torch.zeros(64 << 30, dtype=torch.uint8)


def _save_to_full_disk() -> None:
    with open("/dev/full", "wb") as file:
        torch.save(torch.zeros(1 << 20), file)


def _load_cut_file() -> None:
    torch.save(torch.zeros(1000), "whole.pt")
    Path("cut.pt").write_bytes(Path("whole.pt").read_bytes()[:1000])
    torch.load("cut.pt")


def _anomaly() -> None:
    with torch.autograd.detect_anomaly(check_nan=True):
        weight = torch.tensor([-1.0], requires_grad=True)
        (torch.sqrt(weight) * 0).sum().backward()  # type: ignore[no-untyped-call]


def _norm() -> None:
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.tensor([float("nan")])
    nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)


def _loss_scale() -> None:
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    DynamicLossScaler(
        init_scale=1,
        scale_window=2,
        min_scale=1,
        delayed_shift=1,
        consecutive_hysteresis=False,
        raise_error_at_min_scale=True,
        dtype=None,
    ).update_scale(True)


def _second() -> dt.timedelta:
    return dt.timedelta(seconds=1)


def _master_alone() -> None:
    dist.TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=_second())


def _no_master() -> None:
    dist.TCPStore("127.0.0.1", 1, 2, is_master=False, timeout=_second())


def _port_in_use() -> None:
    with socket.socket(socket.AF_INET6) as used:
        used.bind(("::", 0))
        used.listen()
        dist.TCPStore("localhost", used.getsockname()[1], 1, is_master=True, timeout=_second())


def _join(rank: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meet", rank=rank, world_size=2)


class _Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, batch: torch.Tensor) -> Any:
        return self.used(batch)


def _train(model: nn.Module, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()


def _unused_parameters(rank: int) -> None:
    _join(rank)
    _train(nn.parallel.DistributedDataParallel(_Halves()), 2)


def _other_model(rank: int) -> None:
    _join(rank)
    model = nn.Linear(2, 2) if rank else nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    nn.parallel.DistributedDataParallel(model)


def _mismatch(rank: int) -> None:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    _join(rank)
    dist.all_reduce(torch.zeros(2 + rank))


def _absent_rank(rank: int) -> None:
    _join(rank)
    dist.barrier()
    if rank == 1:
        time.sleep(4)
        os._exit(0)
    dist.monitored_barrier(timeout=_second())


def _first_rank_fails(rank: int) -> None:
    _join(rank)
    dist.barrier()
    if rank == 0:
        dict[str, int]()["attention_mask"]
    dist.all_reduce(torch.zeros(2))


def _second_rank_without_memory(rank: int) -> None:
    _join(rank)
    dist.barrier()
    if rank == 1:
        _host_out_of_memory()
    dist.all_reduce(torch.zeros(2))


def _silent_end(rank: int) -> None:
    _join(rank)
    dist.barrier()
    if rank == 0:
        os._exit(3)
    dist.all_reduce(torch.zeros(2))


def _healthy(rank: int) -> None:
    """Train with success, and print words that failures have too."""
    _join(rank)
    try:
        Path("cache.bin").read_bytes()
    except FileNotFoundError as error:
        print(f"no cache yet ({error.strerror}), the cache is made", flush=True)
    warnings.warn(
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB; smaller batches are used", stacklevel=1
    )
    _train(nn.parallel.DistributedDataParallel(_Halves(), find_unused_parameters=True), 2)
    print("step 2: mean_squared_error 0.25, grad overflow 0, 0 errors, timeout=1800", flush=True)
    dist.destroy_process_group()


def _torchrun(number: int) -> Callable[[], None]:
    """Return a function that runs torchrun with two ranks, whose first is killed by a signal."""

    def launch() -> None:
        from torch.distributed import run

        Path("rank.sh").write_text(f'[ "$RANK" = 1 ] && exec sleep 30; kill -{number} $$')
        run.main(["--nproc-per-node=2", "--standalone", "--no-python", "sh", "rank.sh"])

    return launch


CASES: dict[str, Callable[[], None]] = {
    "shape-mismatch.linear": _shapes,
    "shape-mismatch.broadcast": _broadcast,
    "shape-mismatch.view": _view,
    "shape-mismatch.stack": _stack,
    "shape-mismatch.labels": _labels,
    "shape-mismatch.convolution": _convolution,
    "dtype-mismatch": _dtypes,
    "dtype-mismatch.kernel": _no_kernel_for_dtype,
    "device-mismatch": _devices,
    "checkpoint-mismatch.shape": _state_dict,
    "checkpoint-mismatch.keys": _missing_keys,
    "checkpoint-mismatch.optimizer": _optimizer_state,
    "dataloader-worker": _killed_worker,
    "missing-file.worker": _worker_without_file,
    "script-error.worker": _worker_without_key,
    "segmentation-fault.worker": _segmentation_fault_of_worker,
    "compile-error": _compile,
    "extension-build": _extension,
    "no-gpu": _no_gpu,
    "host-out-of-memory.torch": _host_out_of_memory,
    "disk-full.torch": _save_to_full_disk,
    "corrupt-file.torch": _load_cut_file,
    "loss-nan.anomaly": _anomaly,
    "loss-nan.norm": _norm,
    "loss-nan.deepspeed": _loss_scale,
    "rendezvous-timeout.master": _master_alone,
    "rendezvous-timeout.client": _no_master,
    "port-in-use.torch": _port_in_use,
}
RANKS: dict[str, Callable[[int], None]] = {
    "unused-parameters": _unused_parameters,
    "collective-mismatch": _mismatch,
    "collective-mismatch.model": _other_model,
    "collective-timeout": _absent_rank,
    "script-error.first-rank": _first_rank_fails,
    "host-out-of-memory.second-rank": _second_rank_without_memory,
    "gloo-connection": _silent_end,
    "healthy": _healthy,
}
LAUNCHERS: dict[str, Callable[[], None]] = {
    "segmentation-fault.torchrun": _torchrun(11),
    "illegal-instruction.torchrun": _torchrun(4),
}
