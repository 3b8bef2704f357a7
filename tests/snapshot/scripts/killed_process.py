"""One process of tests/snapshot/test_killed.py: `upload` a folder as a snapshot, or `materialise` one, with a cache.

The machine is not observed, because the test kills m5ws and no other process.
"""

import sys
from pathlib import Path

import m5ws.store.s3.store  # noqa: F401  # forked processes inherit the import
from m5ws.config.settings import ConfigSettings, DataSettings, Settings
from m5ws.records.store import Format
from m5ws.repository.files import materialise, trees
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot import collect, inspection, snapshot
from m5ws.snapshot.sources.git import Git
from m5ws.store import open_store
from m5ws.store.cache.cache import cached
from tests.support.workspace.captures import Machine

_FORMAT = Format(chunk_bytes=32 * 2**10, file_chunk_bytes=32 * 2**10, pack_bytes=8 * 2**10, small_bytes=8 * 2**10)
_SETTINGS = Settings(config=ConfigSettings(files=()), data=DataSettings(paths=("data",), dvc=False))
_CACHE_BYTES = 2**30
_AHEAD = (collect, inspection)


def repository(url: str, cache: str | None = None) -> Repository:
    """Open or make the store, with `cache` behind a cache on disk."""
    repo = Repository.create(open_store(url), _FORMAT)
    return repo if cache is None else repo.with_store(cached(repo.store, Path(cache), _CACHE_BYTES))


def upload(url: str, cache: str, folder: str, index: str) -> None:
    """Take a snapshot and print its id."""
    repo = repository(url, cache)
    taken = snapshot.take(Path(folder), _SETTINGS, repo, Git(), None, None, Machine(), Path(index), message="of many")
    print(taken.id)


def bring(url: str, cache: str, snapshot_id: str, target: str) -> None:
    """Write the files of a snapshot, as `m5ws run` does."""
    repo = repository(url, cache)
    parts = snapshots.load(repo, snapshot_id).trees.values()
    materialise.materialise(repo.objects, [trees.load(repo.objects, tree) for tree in parts], Path(target))


VERBS = {"materialise": bring, "upload": upload}

if __name__ == "__main__":
    VERBS[sys.argv[1]](*sys.argv[2:])
