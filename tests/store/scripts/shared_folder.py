"""Reads and writes a shared folder as another user: `shared_folder.py UID GID UMASK ACTION FOLDER NUMBER`.

It prints the error's message and hint, if there is one.
"""

import os
import sys
from pathlib import Path

from m5ws.access import PathDenied
from m5ws.records.store import Format
from m5ws.repository.objects import Objects
from m5ws.store.cache.cache import CachedStore
from m5ws.store.local import LocalStore


def use_store(folder: Path, number: str) -> None:
    """Add an object and a reference to a store, read all of it, and delete an object of another user."""
    store = LocalStore(folder)
    store.create(f"runs/{number}/run", number.encode())
    store.create(f"objects/{number}", number.encode())
    for prefix in ("runs/", "objects/"):
        for stat in list(store.list(prefix)):
            store.get(stat.key)
    assert store.names("runs/")
    for name in store.names("objects/"):
        if name != number:
            store.delete(f"objects/{name}")


def use_cache(folder: Path, number: str) -> None:
    """Fetch an object of the store beside a cache through the cache."""
    far = LocalStore(folder.with_name("far"))
    near = CachedStore(far, folder, 2**30)
    objects = Objects(near, Format())
    for stat in far.list("objects/"):
        objects.get(stat.key.rpartition("/")[2])
        if near.problem is not None:
            print("read without the cache:", end=" ")
            raise near.problem
        assert near.cached_size(stat.key)


if __name__ == "__main__":
    uid, gid, umask, action, folder, number = sys.argv[1:]
    os.setgroups([int(gid)])
    os.setresgid(*[int(uid)] * 3)
    os.setresuid(*[int(uid)] * 3)
    os.umask(int(umask, 8))
    try:
        {"store": use_store, "cache": use_cache}[action](Path(folder), number)
    except PathDenied as error:
        print(error, error.hint)
