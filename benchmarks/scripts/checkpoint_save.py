"""One way to save and load a checkpoint of an FSDP2 model and its AdamW state, measured on every rank.

Usage: torchrun … checkpoint_save.py TOOL MIB {save,load} PLACE OUT, where PLACE is a folder, or s3://bucket/prefix for
the tools that end in -s3. `save` saves four times: all new, all changed by a step, the same again, and a tenth changed.
`load` restores a new model, whose optimizer has no state yet. BENCHMARK_LOCAL names the folder of m5ws for copies on
the local disk, if there are copies.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard

from m5ws.records import codec
from m5ws.records.environment import Determinism
from m5ws.records.launch import Context, Saving
from m5ws.records.ledger import NODE, AttemptStarted
from m5ws.records.run import LaunchSpec, Run
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.spool import SpoolWriter, genesis
from m5ws.repository.references import checkpoints, runs
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from m5ws.training.backends.base import NoCopyStager
from m5ws.training.backends.torch_backend import TorchBackend
from m5ws.training.checkpoint import checkpointing
from m5ws.training.checkpoint.writer import HostBuffers, Saver
from m5ws.training.runtime import collectives
from m5ws.training.runtime.context import ActiveRank
from m5ws.training.runtime.stop import StopRequest

_LAYERS = 20
_LAST = 3
"""The number of the last save, which is loaded."""
_PART_BYTES = 64 * 2**20
Save = Callable[[int], None]
"""Begins a save under a number; returns when the training may continue."""


class Tool(ABC):
    """`save` returns when the training may continue, `wait` when all is durable, `load` when the state is restored."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, place: str) -> None:
        self.model, self.optimizer, self.place = model, optimizer, place
        self.group = collectives.new_group()

    def state(self) -> dict[str, Any]:
        """Return the live state by name."""
        return dict(TorchBackend(self.model, self.optimizer).stage(NoCopyStager()).state)

    def new_state(self) -> dict[str, Any]:
        """Return the live state by name, after torch made the state of the optimizer, as DCP's documentation says."""
        get_optimizer_state_dict(self.model, self.optimizer)
        return self.state()

    @abstractmethod
    def save(self, number: int) -> None: ...

    def wait(self) -> None:  # noqa: B027  most save nothing beside the training
        """Return at once: no save is running."""

    @abstractmethod
    def load(self) -> None: ...


class Copy(Tool):
    """The state copied within memory, into memory that is used again: the lower bound of an asynchronous save."""

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self._held: dict[str, torch.Tensor] = {}

    def save(self, number: int) -> None:
        for name, tensor in self.state().items():
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            if name not in self._held:
                self._held[name] = torch.empty_like(local)
            self._held[name].copy_(local)

    def load(self) -> None:
        for name, tensor in self.state().items():
            (tensor.to_local() if hasattr(tensor, "to_local") else tensor).copy_(self._held[name])


class TorchSave(Tool):
    """`torch.save` of each rank's shards into a file, synced."""

    def save(self, number: int) -> None:
        local = {n: t.to_local() if hasattr(t, "to_local") else t for n, t in self.state().items()}
        with open(f"{self.place}/{number}-{dist.get_rank()}.pt", "wb") as file:
            torch.save(local, file)
            file.flush()
            os.fsync(file.fileno())
        dist.barrier()

    def load(self) -> None:
        found = torch.load(f"{self.place}/{_LAST}-{dist.get_rank()}.pt", mmap=False)
        for name, tensor in self.new_state().items():
            (tensor.to_local() if hasattr(tensor, "to_local") else tensor).copy_(found[name])


class Dcp(Tool):
    """`dcp.save`, or `dcp.async_save`, with another storage writer."""

    asynchronous = False
    future: Any = None

    def writer(self, number: int) -> Any:
        return dcp.FileSystemWriter(f"{self.place}/{number}", thread_count=2, sync_files=True)

    def reader(self) -> Any:
        return dcp.FileSystemReader(f"{self.place}/{_LAST}")

    def save(self, number: int) -> None:
        if self.asynchronous:
            self.wait()
            self.future = dcp.async_save(self.state(), storage_writer=self.writer(number), process_group=self.group)
        else:
            dcp.save(self.state(), storage_writer=self.writer(number), process_group=self.group)

    def wait(self) -> None:
        if self.future is not None:
            self.future.result()
            self.future = None

    def load(self) -> None:
        dcp.load(self.new_state(), storage_reader=self.reader(), process_group=self.group)


class DcpAsync(Dcp):
    """The same, asynchronously."""

    asynchronous = True


class Connector(Dcp):
    """The S3 connector for PyTorch, as in its documentation."""

    def writer(self, number: int) -> Any:
        from s3torchconnector.dcp import S3StorageWriter

        return S3StorageWriter(region="us-east-1", path=f"{self.place}/{number}", thread_count=4)

    def reader(self) -> Any:
        from s3torchconnector.dcp import S3StorageReader

        return S3StorageReader(region="us-east-1", path=f"{self.place}/{_LAST}")


class ConnectorAsync(Connector):
    """The same, asynchronously."""

    asynchronous = True


class Raw(Tool):
    """The same bytes by the fastest client, in parts of 64 MiB, 8 at a time, unnamed and unhashed."""

    def save(self, number: int) -> None:
        self._each(number, lambda client, path, part: client.put(path, part, use_multipart=False), self.state())
        dist.barrier()

    def load(self) -> None:
        def fetch(client: Any, path: str, part: memoryview) -> None:
            part[:] = client.get(path).bytes()

        self._each(_LAST, fetch, self.new_state())

    def _each(self, number: int, act: Callable[[Any, str, memoryview], object], state: dict[str, Any]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        from obstore.store import S3Store

        bucket, _, prefix = self.place.removeprefix("s3://").partition("/")
        authority = os.environ.get("AWS_CA_BUNDLE")
        options: Any = {"allow_http": True, "timeout": "300s"}
        options |= {"root_certificate": Path(authority).read_bytes()} if authority else {}
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        client = S3Store(bucket, endpoint=endpoint, unsigned_payload=True, client_options=options)
        with ThreadPoolExecutor(8) as pool:
            jobs = []
            for name, tensor in state.items():
                local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
                data = local.contiguous().view(-1).view(torch.uint8).numpy().data
                for start in range(0, data.nbytes, _PART_BYTES):
                    path = f"{prefix}/{number}/{dist.get_rank()}/{name}-{start}"
                    jobs.append(pool.submit(act, client, path, data[start : start + _PART_BYTES]))
            for job in jobs:
                job.result()


class M5ws(Tool):
    """The save of a session: copied, fingerprinted, hashed, uploaded, published, by `training.checkpointing`."""

    asynchronous = False

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self._backend = TorchBackend(self.model, self.optimizer)
        self._buffers, self._saver = HostBuffers(), Saver(None)
        rank = dist.get_rank()
        if rank == 0:
            _begin_run(self.place)
        dist.barrier()
        repo = Repository.open(open_store(self.place))
        folder = Path(os.environ["BENCHMARK_SPOOL"])
        spool = SpoolWriter(folder / f"{rank}.spool", genesis("0" * 12, 1, str(rank)))
        self._spool_path = folder / "0.spool"
        self._kept = folder / "kept"
        local = os.environ.get("BENCHMARK_LOCAL", "")
        context = Context(
            store=self.place,
            saving=Saving(local=local or None),
            local=local,
            run="0" * 12,
            snapshot="0" * 64,
            attempt=1,
            spec=LaunchSpec(command=("x",)),
            determinism=Determinism(),
            **dict.fromkeys(("work_dir", "spool_dir", "log_dir", "output_dir", "author_dir"), str(folder)),  # type: ignore[arg-type]
        )
        self._active = ActiveRank(context, repo, spool, StopRequest(folder / "stop"), rank, dist.get_world_size())

    def save(self, number: int) -> None:
        self._saver.join()
        staged = self._backend.stage(self._buffers if self.asynchronous else NoCopyStager())
        self._buffers.wait()
        moment = checkpointing.TrainingState(number, {}, {"generators": {}}, self._active.spool.head)

        def work() -> bool:
            return checkpointing.save(self._active, staged, self._backend.format, self.group, moment, self._kept)

        if self.asynchronous:
            self._saver.begin(work)
        else:
            assert self._saver.run(work)

    def wait(self) -> None:
        self._saver.join()

    def load(self) -> None:
        repo = self._active.repo
        digest = checkpoints.digest(repo, "0" * 12, checkpoints.name(_LAST, 1))
        checkpointing.load(self._active, self._backend, self.group, digest)


class M5wsAsync(M5ws):
    """The same, in parallel to the training."""

    asynchronous = True


def _begin_run(url: str) -> None:
    repo = Repository.create(open_store(url))
    if "0" * 12 in repo.store.names("runs/"):
        return
    runs.publish(repo, Run(id="0" * 12, snapshot="0" * 64, spec=LaunchSpec(command=("x",))))
    started = AttemptStarted(attempt=1, host="h")
    ledger.ChainWriter(repo, "0" * 12, 1).append({NODE: [codec.encode(started)]})


TOOLS: dict[str, type[Tool]] = {
    "copy": Copy,
    "torch.save": TorchSave,
    "dcp": Dcp,
    "dcp async": DcpAsync,
    "m5ws": M5ws,
    "m5ws async": M5wsAsync,
    "raw-s3": Raw,
    "connector-s3": Connector,
    "connector async-s3": ConnectorAsync,
    "m5ws-s3": M5ws,
    "m5ws async-s3": M5wsAsync,
}


def build(mib: int, mode: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model whose state, with AdamW's, is of `mib` MiB on all ranks together; to `load`, before any step."""
    seed = 1 if mode == "save" else 2
    torch.manual_seed(seed)
    width = int((mib * 2**20 / 3 / 4 / _LAYERS) ** 0.5) // 8 * 8
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(_LAYERS)))
    for layer in model:
        fully_shard(layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    # Each rank has gradients of its own.
    torch.manual_seed(1000 * seed + dist.get_rank())
    # To load, another optimizer takes the first step of the process, which imports much.
    step(*((model, optimizer) if mode == "save" else _small()), 1.0)
    return model, optimizer


def _small() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(fully_shard(nn.Linear(8, 8)))
    return model, torch.optim.AdamW(model.parameters())


def step(model: nn.Module, optimizer: torch.optim.Optimizer, share: float) -> None:
    """Take an optimizer step on a share of the layers, with gradients without equal parts."""
    for number, layer in enumerate(model):  # type: ignore[arg-type]
        for parameter in layer.parameters():
            parameter.grad = torch.empty_like(parameter) if number < share * _LAYERS else None
            if parameter.grad is not None:
                parameter.grad.to_local().normal_(std=0.3)  # type: ignore[attr-defined]
    optimizer.step()
    optimizer.zero_grad()


def _memory_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise KeyError(field)


def _touch_memory() -> None:
    """Write as much into two files as a save does, and delete them: one by large, one by small writes.

    A virtual machine gets memory that it has not used lately from its host, more slowly than a disk writes. Memory that
    a process freed is not enough: the kernel takes other blocks for files, and larger blocks for larger writes.
    """
    folder = None if "://" in sys.argv[4] else Path(sys.argv[4]).parent
    with contextlib.ExitStack() as files:
        for piece in (2**20, 2**16):
            file = files.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0))
            for _ in range(int(sys.argv[2]) * 2**20 // dist.get_world_size() // piece):
                file.write(bytes(piece))


def measured(tool: Tool, number: int) -> dict[str, float]:
    """Save once; return the time for which the training was stopped, the total time, and the additional memory."""
    _touch_memory()
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")
    before, began = _memory_bytes("VmRSS"), time.perf_counter()
    tool.save(number)
    stall = time.perf_counter() - began
    tool.wait()
    dist.barrier()
    return {
        "stall_s": stall,
        "total_s": time.perf_counter() - began,
        "memory_mib": (_memory_bytes("VmHWM") - before) / 2**20,
    }


def main() -> None:
    name, mib, mode, place, out = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], Path(sys.argv[5])
    dist.init_process_group("gloo")
    model, optimizer = build(mib, mode)
    tool = TOOLS[name](model, optimizer, place)
    if mode == "save":
        rows = {}
        # The second save is as the third, but for the folders that a new store still makes.
        saves = (("first", 0.0), ("second", 1.0), ("all changed", 1.0), ("a tenth changed", 0.1))
        for number, (row, share) in enumerate(saves):
            step(model, optimizer, share)
            rows[row] = measured(tool, number)
    else:
        _touch_memory()
        dist.barrier()
        began = time.perf_counter()
        tool.load()
        dist.barrier()
        rows = {"load": {"total_s": time.perf_counter() - began}}
    if dist.get_rank() == 0:
        out.write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
