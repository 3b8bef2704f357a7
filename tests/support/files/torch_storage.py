"""Replaces FileSystemWriter and FileSystemReader in PyTorch's own tests by the repository's writer and reader.

Importing this module does so for the process. A folder of such a test becomes a store, and `content` in it has the last
save. Conditions of tests for GPUs are removed, so that they run on gloo.
"""

import dataclasses
import io
import itertools
import os
import pathlib
import unittest
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint import _storage_utils, filesystem
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from torch.testing._internal import common_distributed
from torch.testing._internal.distributed._tensor import common_dtensor

from m5ws.errors import NotFound
from m5ws.records import codec
from m5ws.records.checkpoint import Content
from m5ws.records.store import Format
from m5ws.records.tree import Slice
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from m5ws.training.backends.dcp_reader import RepositoryReader
from m5ws.training.backends.dcp_writer import RepositoryWriter

_ANOTHER_FORMAT = {"_extensions", "_extension_registry", "serialization_format"}
_FORMAT = Format(chunk_bytes=64 * 1024, small_bytes=64, pack_bytes=256)


def _repository(path: str | os.PathLike[str]) -> Repository:
    """Return the store in a folder; several ranks may open it at once."""
    store = LocalStore(pathlib.Path(path) / "store")
    try:
        return Repository.open(store)
    except NotFound:
        return Repository.create(store, _FORMAT)


def _check(options: dict[str, Any]) -> None:
    if unsupported := sorted(options.keys() & _ANOTHER_FORMAT):
        raise unittest.SkipTest(f"{', '.join(unsupported)}: about the format of torch's own files")
    if options.get("overwrite") is False:
        raise unittest.SkipTest("overwrite=False: about files in a folder; contents of a store are never overwritten")


class Writer(RepositoryWriter):
    """Accepts the arguments of FileSystemWriter."""

    def __init__(self, path: str | os.PathLike[str] = "", *args: Any, **options: Any) -> None:
        _check(options)
        if path:
            super().__init__(_repository(path).objects)
        self.path = path

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id:
            self.__init__(checkpoint_id)  # type: ignore[misc]
        super().reset(checkpoint_id)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write byte items too, which m5ws's own states do not have."""
        is_bytes = [item.type == WriteItemType.BYTE_IO for item in plan.items]
        tensors = [item for item, apart in zip(plan.items, is_bytes, strict=True) if not apart]
        results = super().write_data(dataclasses.replace(plan, items=tensors), planner).value()
        for item in itertools.compress(plan.items, is_bytes):
            data = cast("io.BytesIO", planner.resolve_data(item)).getvalue()
            digest = self._objects.put(data)
            part = Slice(object=digest, offset=0, size_bytes=len(data), digest=digest)
            results.append(WriteResult(item.index, len(data), (part,)))
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        written = {result.index.fqn: result.storage_data for rank in results for result in rank}
        items = metadata.state_dict_metadata.items()
        blobs = {name: written[name][0] for name, item in items if isinstance(item, BytesStorageMetadata)}
        content = Content(format="dcp/1", world=1, tensors=self.tensors, blobs=blobs)
        (pathlib.Path(self.path) / "content").write_bytes(codec.encode(content))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return "://" not in str(checkpoint_id)


class Reader(RepositoryReader):
    """Accepts the arguments of FileSystemReader."""

    def __init__(self, path: str | os.PathLike[str] = "", *args: Any, **options: Any) -> None:
        _check(options)
        self.path = path

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.path = checkpoint_id or self.path

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        content = codec.decode((pathlib.Path(self.path) / "content").read_bytes(), Content)
        super().__init__(_repository(self.path).objects, content)
        metadata = super().read_metadata(*args, **kwargs)
        metadata.state_dict_metadata |= {name: BytesStorageMetadata() for name in content.blobs}
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read byte items too."""
        is_bytes = [item.type == LoadItemType.BYTE_IO for item in plan.items]
        for item in itertools.compress(plan.items, is_bytes):
            blob = self._content.blobs[item.storage_index.fqn]
            planner.load_bytes(item, io.BytesIO(self._objects.read(blob)))
        tensors = [item for item, apart in zip(plan.items, is_bytes, strict=True) if not apart]
        return super().read_data(dataclasses.replace(plan, items=tensors), planner)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return "://" not in str(checkpoint_id)


def _anywhere(*conditions: Any, **more: Any) -> Callable[[Any], Any]:
    return lambda test: test


def install() -> None:
    """Replace torch's names. GPU conditions are removed, and `.cuda()` does nothing."""
    if os.environ.get("TORCH_STORAGE") != "torch":
        for module in (checkpoint, filesystem, _storage_utils):
            vars(module).update(FileSystemWriter=Writer, FileSystemReader=Reader)
    for module in (common_distributed, common_dtensor):
        for condition in ("skip_if_lt_x_gpu", "requires_nccl", "requires_accelerator_dist_backend"):
            if hasattr(module, condition):
                setattr(module, condition, _anywhere)
    for kind in (torch.Tensor, torch.nn.Module):
        kind.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]


install()
