"""Internals of DCP's files: the version of their metadata, and the record of a block's place."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta

from m5ws.training.compat.facts import Fact

Place = tuple[str, int, int]
"""A file's name, the first byte of a block in it, and the block's length."""


def write_metadata(tensors: Mapping[str, Any], places: Mapping[MetadataIndex, Place], directory: Path) -> None:
    """Write the file `.metadata` of a checkpoint, which `FileSystemReader` reads."""
    stored = {index: filesystem._StorageInfo(*place) for index, place in places.items()}
    version = filesystem.CURRENT_DCP_VERSION
    metadata = Metadata(dict(tensors), storage_data=stored, storage_meta=StorageMeta(), version=version)
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))


def _has_place() -> bool:
    place: Any = filesystem._StorageInfo("file", 1, 2)
    return (place.relative_path, place.offset, place.length) == ("file", 1, 2)


WRITTEN = (
    Fact("torch", "torch.distributed.checkpoint.filesystem._StorageInfo", _has_place),
    Fact("torch", "CURRENT_DCP_VERSION = '1.0.0'", lambda: filesystem.CURRENT_DCP_VERSION == "1.0.0"),
)
