"""Loaders of training data behind one interface, each as its documentation shows it for a training that resumes.

A sample is a row of LENGTH numbers: its id, and numbers that follow from the id. Each loader has its own format on
disk. Its order is shuffled, and other in each epoch.
"""

import hashlib
import importlib
import os
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

SAMPLES, LENGTH, SHARDS, EPOCHS, SEED = 960, 64, 20, 2, 7
GLOBAL_BATCH = 24
State = Any
Array = np.ndarray[Any, np.dtype[Any]]


def make_samples(ids: Array) -> Array:
    """Return the samples with these ids."""
    rows = (ids[:, None].astype(np.int64) * 7919 + np.arange(LENGTH) * 104729) % 50021
    rows[:, 0] = ids
    return rows.astype(np.int32)


def shards() -> Iterator[tuple[int, Array]]:
    """Yield the number of each shard and its samples."""
    for number in range(SHARDS):
        yield number, make_samples(number * (SAMPLES // SHARDS) + np.arange(SAMPLES // SHARDS))


class Place(NamedTuple):
    """The position of a rank, and its number of workers."""

    rank: int
    world: int
    workers: int

    @property
    def batch(self) -> int:
        return GLOBAL_BATCH // self.world


class Loader:
    """A loader in one rank. `state` is read after each batch, and given to `start` in a later process."""

    packages: ClassVar[tuple[str, ...]] = ()
    """The packages with a version, the row's version first."""
    modules: ClassVar[tuple[str, ...]] = ()
    """Modules that are imported before the ranks are forked."""
    distributed: ClassVar[bool] = False
    """Whether torch's process group is initialised."""
    stateful: ClassVar[bool] = True
    _loader: Any
    """The peer's loader: an iterable of batches with a `state_dict`, except where a class overrides its uses."""

    @abstractmethod
    def prepare(self, folder: Path) -> list[Path]:
        """Write the data set, and return the files with samples."""

    @abstractmethod
    def start(self, folder: Path, place: Place, state: State | None) -> None:
        """Make the loader. `state`: of the same loader in an earlier process."""

    def batches(self, epoch: int) -> Iterator[Array]:
        """Yield the batches of an epoch: after `start` with a state of this epoch, the rest."""
        return (np.asarray(batch) for batch in self._loader)

    def state(self) -> State:
        return self._loader.state_dict() if self.stateful else None


class Table(Loader):
    """A base of loaders of samples that are picked by index from one file."""

    def prepare(self, folder: Path) -> list[Path]:
        np.concatenate([rows for _, rows in shards()]).tofile(folder / "rows.bin")
        return [folder / "rows.bin"]

    def rows(self, folder: Path) -> Array:
        return np.memmap(folder / "rows.bin", np.int32, mode="r").reshape(SAMPLES, LENGTH)


class StatefulDataLoader(Table):
    """torchdata's StatefulDataLoader with its StatefulDistributedSampler."""

    packages = ("torchdata",)
    modules = ("torch", "torchdata.stateful_dataloader")

    def start(self, folder: Path, place: Place, state: State | None) -> None:
        from torch.utils.data import Dataset
        from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

        rows = self.rows(folder)

        class Rows(Dataset):
            def __getitem__(self, index: int) -> Array:
                return np.array(rows[index])

            def __len__(self) -> int:
                return SAMPLES

        self._sampler = StatefulDistributedSampler(
            Rows(), num_replicas=place.world, rank=place.rank, shuffle=True, seed=SEED
        )
        self._loader = DataLoader(Rows(), batch_size=place.batch, sampler=self._sampler, num_workers=place.workers)
        if state is not None:
            self._loader.load_state_dict(state)

    def batches(self, epoch: int) -> Iterator[Array]:
        self._sampler.set_epoch(epoch)
        return (batch.numpy() for batch in self._loader)


class Nodes(Table):
    """torchdata.nodes with threads: sampler, batcher, mapper."""

    packages = ("torchdata",)
    modules = ("torch", "torchdata.nodes")

    def start(self, folder: Path, place: Place, state: State | None) -> None:
        from torchdata import nodes
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

        rows = self.rows(folder)
        sampler = StatefulDistributedSampler(
            range(SAMPLES), num_replicas=place.world, rank=place.rank, shuffle=True, seed=SEED
        )
        batches = nodes.Batcher(nodes.SamplerWrapper(sampler), place.batch)
        # Without a worker, another node with another state would take its place.
        threads = max(place.workers, 1)
        self._loader = nodes.Loader(
            nodes.ParallelMapper(batches, rows.__getitem__, num_workers=threads, method="thread")
        )
        if state is not None:
            self._loader.load_state_dict(state)


class Mosaic(Loader):
    """streaming, with the checksums that it writes, and checks when it copies a file into its cache."""

    packages = ("streaming-community", "mosaicml-streaming")
    modules = ("torch", "streaming")
    distributed = True

    def prepare(self, folder: Path) -> list[Path]:
        from streaming import MDSWriter

        out, limit = str(folder / "mds"), (LENGTH * 4 + 40) * SAMPLES // SHARDS
        with MDSWriter(out=out, columns={"x": "ndarray:int32"}, size_limit=limit, hashes=["xxh3_64"]) as writer:
            for _, rows in shards():
                for row in rows:
                    writer.write({"x": row})
        return sorted((folder / "mds").glob("*.mds"))

    def start(self, folder: Path, place: Place, state: State | None) -> None:
        from streaming import StreamingDataLoader, StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()
        dataset = StreamingDataset(
            remote=str(folder / "mds"),
            local=str(folder / "cache" / "mds"),
            shuffle=True,
            shuffle_seed=SEED,
            batch_size=place.batch,
            num_canonical_nodes=1,
            validate_hash="xxh3_64",
        )
        self._loader = StreamingDataLoader(dataset, batch_size=place.batch, num_workers=place.workers, drop_last=True)
        if state is not None:
            self._loader.load_state_dict(state)

    def batches(self, epoch: int) -> Iterator[Array]:
        return (batch["x"].numpy() for batch in self._loader)


class LitData(Loader):
    """litdata, with its elastic resume: one canonical node. Its search for a newer version is switched off."""

    packages = ("litdata",)
    modules = ("torch", "litdata")
    distributed = True

    def prepare(self, folder: Path) -> list[Path]:
        import torch
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(str(folder / "lit"), chunk_size=SAMPLES // SHARDS)
        for number, rows in shards():
            for place, row in enumerate(rows):
                writer.add_item(number * SAMPLES // SHARDS + place, {"x": torch.from_numpy(row)})
        writer.done()
        writer.merge()
        return sorted((folder / "lit").glob("*.bin"))

    def start(self, folder: Path, place: Place, state: State | None) -> None:
        import litdata.streaming.dataset as module
        from litdata import StreamingDataLoader, StreamingDataset

        module._check_version_and_prompt_upgrade = print  # noqa: SLF001  # it has no setting
        self._dataset = StreamingDataset(
            str(folder / "lit"), shuffle=True, seed=SEED, drop_last=True, num_canonical_nodes=1
        )
        self._loader = StreamingDataLoader(
            self._dataset, batch_size=place.batch, num_workers=place.workers, drop_last=True
        )
        if state is not None:
            self._loader.load_state_dict(state)

    def batches(self, epoch: int) -> Iterator[Array]:
        return (batch["x"].numpy() for batch in self._loader)


os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


class Datasets(Loader):
    """Hugging Face datasets, streamed from Parquet files through a shuffle buffer, in torchdata's loader."""

    packages = ("datasets", "torchdata")
    modules = ("torch", "datasets", "torchdata.stateful_dataloader")

    def prepare(self, folder: Path) -> list[Path]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        for number, rows in shards():
            pq.write_table(pa.table({"x": [*rows]}), folder / f"{number:02}.parquet", use_dictionary=False)
        return sorted(folder.glob("*.parquet"))

    def start(self, folder: Path, place: Place, state: State | None) -> None:
        import datasets
        from datasets.distributed import split_dataset_by_node
        from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader

        files = sorted(map(str, folder.glob("*.parquet")))
        rows = datasets.load_dataset(
            "parquet", data_files=files, split="train", streaming=True, cache_dir=str(folder / "cache")
        )
        rows = split_dataset_by_node(
            rows.shuffle(seed=SEED, buffer_size=256, max_buffer_input_shards=1), rank=place.rank, world_size=place.world
        )
        self._rows = rows.with_format("numpy")
        self._loader = DataLoader(
            self._rows, batch_size=place.batch, num_workers=place.workers, collate_fn=_stack, drop_last=True
        )
        if state is not None:
            self._loader.load_state_dict(state)

    def batches(self, epoch: int) -> Iterator[Array]:
        self._rows.set_epoch(epoch)
        return iter(self._loader)


def _stack(samples: list[dict[str, Array]]) -> Array:
    return np.stack([sample["x"] for sample in samples])


class WebDataset(Loader):
    """webdataset with its deterministic shuffle. It has no state to save."""

    packages = ("webdataset",)
    modules = ("torch", "webdataset")
    stateful = False

    def prepare(self, folder: Path) -> list[Path]:
        import webdataset as wds

        with wds.ShardWriter(str(folder / "%02d.tar"), maxcount=SAMPLES // SHARDS, verbose=0) as writer:
            for _, rows in shards():
                for row in rows:
                    writer.write({"__key__": f"{row[0]:06}", "npy": row})
        return sorted(folder.glob("*.tar"))

    def start(self, folder: Path, place: Place, state: State | None) -> None:
        import webdataset as wds

        files = sorted(map(str, folder.glob("*.tar")))
        samples = wds.WebDataset(
            files, nodesplitter=wds.split_by_node, shardshuffle=SHARDS, seed=SEED, detshuffle=True, empty_check=False
        )
        samples = samples.shuffle(256, seed=SEED).decode().to_tuple("npy").batched(place.batch, partial=False)
        self._loader = wds.WebLoader(samples, batch_size=None, num_workers=place.workers)

    def batches(self, epoch: int) -> Iterator[Array]:
        return (np.asarray(batch[0]) for batch in self._loader)


class Grain(Loader):
    """grain's ElasticIterator over ArrayRecord files."""

    packages = ("grain", "array_record")
    modules = ()
    """grain spawns its workers, so its libraries are imported in the ranks only."""

    def prepare(self, folder: Path) -> list[Path]:
        from array_record.python import array_record_module

        for number, rows in shards():
            writer = array_record_module.ArrayRecordWriter(str(folder / f"{number:02}.array_record"), "group_size:1")
            for row in rows:
                writer.write(row.tobytes())
            writer.close()
        return sorted(folder.glob("*.array_record"))

    def start(self, folder: Path, place: Place, state: State | None) -> None:
        import grain
        from grain.experimental import ElasticIterator

        files = sorted(map(str, folder.glob("*.array_record")))
        samples = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files)).shuffle(seed=SEED)
        workers = grain.MultiprocessingOptions(num_workers=place.workers) if place.workers else None
        self._iterator = iter(
            ElasticIterator(
                samples.repeat(EPOCHS).map(_numbers),
                GLOBAL_BATCH,
                grain.sharding.ShardOptions(shard_index=place.rank, shard_count=place.world),
                read_options=grain.ReadOptions(num_threads=2, prefetch_buffer_size=8),
                multiprocessing_options=workers,
            )
        )
        if state is not None:
            self._iterator.set_state(state)

    def batches(self, epoch: int) -> Iterator[Array]:
        """Yield the batches of this epoch and of all later epochs, which are one sequence."""
        return self._iterator

    def state(self) -> State:
        return self._iterator.get_state()


class M5ws(Loader):
    """m5ws.data on a data set that stays in a DVC remote, here a folder, through the cache of the machine."""

    packages = ("m5ws",)
    modules = ("torch", "m5ws.data.loader")

    def prepare(self, folder: Path) -> list[Path]:
        import msgspec

        from m5ws.records.snapshot import Manifest, ManifestFile

        pinned, paths = [], []
        for number, rows in shards():
            np.save(folder / "rows.npy", rows.reshape(-1))
            content = (folder / "rows.npy").read_bytes()
            digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
            paths.append(folder / "remote" / digest[:2] / digest[2:])
            paths[-1].parent.mkdir(parents=True, exist_ok=True)
            paths[-1].write_bytes(content)
            pinned.append(ManifestFile(path=f"{number:02}.npy", size_bytes=len(content), digest=f"md5:{digest}"))
        (folder / "manifest").write_bytes(msgspec.msgpack.encode(Manifest(files=tuple(pinned))))
        return paths

    def start(self, folder: Path, place: Place, state: State | None) -> None:
        import msgspec

        from m5ws.data import Loader as DataLoader
        from m5ws.data import Source
        from m5ws.data.pinned import of_remote
        from m5ws.data.remote import RemoteFiles
        from m5ws.records.snapshot import Manifest, RemoteDataset

        manifest = msgspec.msgpack.decode((folder / "manifest").read_bytes(), type=Manifest)
        remote = RemoteDataset(
            name="data/rows",
            kind="dvc",
            url=str(folder / "remote"),
            manifest="0" * 64,
            size_bytes=sum(file.size_bytes for file in manifest.files),
            files=len(manifest.files),
        )
        files = RemoteFiles(remote, manifest, folder / "cache" / "files", 1 << 30)
        self._loader = DataLoader(
            Source(dataset=of_remote(files, "data/rows"), length=LENGTH, window=4),
            batch_size=GLOBAL_BATCH,
            seed=SEED,
            workers=place.workers,
            rank=place.rank,
            world=place.world,
            cache=folder / "cache" / "samples",
        )
        if state is not None:
            self._loader.load_state_dict(state)


def _numbers(record: bytes) -> Array:
    return np.frombuffer(record, np.int32)


LOADERS: dict[str, tuple[str, Callable[[], Loader]]] = {
    "m5ws": ("m5ws.data", M5ws),
    "torchdata": ("torchdata StatefulDataLoader", StatefulDataLoader),
    "nodes": ("torchdata.nodes", Nodes),
    "streaming": ("streaming-community", Mosaic),
    "litdata": ("litdata", LitData),
    "datasets": ("datasets, shuffle buffer", Datasets),
    "webdataset": ("webdataset", WebDataset),
    "grain": ("grain ElasticIterator", Grain),
}
"""The title and the class of each loader."""


def new_folder(base: Path, name: str) -> Path:
    """Return an empty folder of a loader."""
    folder = base / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def join(place: Place, folder: Path, loader: Loader) -> None:
    """Set the variables of a rank that torchrun sets, and initialise the process group for a loader that uses it."""
    os.environ |= {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world),
        "LOCAL_RANK": str(place.rank),
        "LOCAL_WORLD_SIZE": str(place.world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29777",
        "NODE_RANK": "0",
        "GROUP_RANK": "0",
    }
    if loader.distributed:
        distributed = importlib.import_module("torch.distributed")
        store = distributed.FileStore(str(folder / "group"), place.world)
        distributed.init_process_group("gloo", store=store, rank=place.rank, world_size=place.world)
