"""Data sets of each format in a folder, written without the loader, and an open data set of such a folder."""

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from m5ws.data import pinned
from m5ws.data.pinned import PinnedDataset
from m5ws.data.remote import RemoteFiles
from m5ws.records.snapshot import Manifest, ManifestFile, RemoteDataset


@dataclass(frozen=True)
class File:
    path: str


class Folder:
    """Stands for a pinned data set: the files below a folder."""

    def __init__(self, root: Path, name: str = "data/web") -> None:
        self.root, self.name, self.folder = root, name, name
        self.files = [File(str(path.relative_to(root))) for path in sorted(root.rglob("*")) if path.is_file()]
        self.digest = f"{name}-{len(self.files)}"

    def fetch(self, index: int) -> Path:
        return self.root / self.files[index].path


def remote(root: Path, name: str, node: str) -> PinnedDataset:
    """Return the files of a folder as a data set in a remote, which a node reads through a cache of its own."""
    files = []
    for path in sorted((root / name).iterdir()):
        body = path.read_bytes()
        digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
        place = root / "remote" / digest[:2] / digest[2:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(body)
        files.append(ManifestFile(path=path.name, size_bytes=len(body), digest=f"md5:{digest}"))
    place_of_all = RemoteDataset(
        name="data/web", kind="dvc", url=str(root / "remote"), manifest="d" * 64, size_bytes=1, files=len(files),
        hash="1.dir",
    )  # fmt: skip
    return pinned.of_remote(RemoteFiles(place_of_all, Manifest(files=tuple(files)), root / node, 10**8), "data/web")


def write_megatron(folder: Path, shards: list[list[np.ndarray[Any, Any]]]) -> None:
    """Write the documents of each shard as Megatron does, with uint16 tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, documents in enumerate(shards):
        lengths = np.array([len(document) for document in documents], np.int32)
        starts = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)])[: len(lengths)] * 2
        table = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([8]) + len(lengths).to_bytes(8, "little")
        table += (len(lengths) + 1).to_bytes(8, "little") + lengths.tobytes() + starts.astype(np.int64).tobytes()
        table += np.arange(len(lengths) + 1, dtype=np.int64).tobytes()
        (folder / f"{number:03}.idx").write_bytes(table)
        (folder / f"{number:03}.bin").write_bytes(b"".join(item.astype(np.uint16).tobytes() for item in documents))


def write_jsonl(folder: Path, shards: list[list[Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(shards):
        (folder / f"{number:03}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


def write_npy(folder: Path, shards: list[np.ndarray[Any, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, tokens in enumerate(shards):
        np.save(folder / f"{number:03}.npy", tokens)


def write_parquet(folder: Path, shards: list[list[dict[str, Any]]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(shards):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{number:03}.parquet", row_group_size=4)


def write_tar(folder: Path, shards: list[list[dict[str, bytes]]]) -> None:
    """Write samples as members `KEY.SUFFIX`, with the key in `__key__`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(shards):
        with tarfile.open(folder / f"{number:03}.tar", "w") as archive:
            for row in rows:
                for suffix, content in row.items():
                    if suffix != "__key__":
                        member = tarfile.TarInfo(f"{row['__key__'].decode()}.{suffix}")
                        member.size = len(content)
                        archive.addfile(member, io.BytesIO(content))
