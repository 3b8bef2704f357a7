"""Reads objects of a store through a cache, in its own order, in a process of its own.

reader.py STORE CACHE LIMIT_BYTES SEED ROUNDS [FSIZE_BYTES]

It prints `ready` at the start. At the end it prints the number of reads and of requests to the store. A wrong byte is
an error. With FSIZE_BYTES no file may grow larger: the kernel refuses writes as on a full disk.
"""

import random
import resource
import sys
from pathlib import Path

from m5ws.records.tree import Slice
from m5ws.repository.repository import Repository
from m5ws.store.cache.cache import CachedStore
from m5ws.store.local import LocalStore
from tests.support.stores.counting_store import CountingStore


def main(store: str, cache: str, limit: str, seed: str, rounds: str, fsize: str = "") -> None:
    if fsize:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(fsize), int(fsize)))
    far = CountingStore(LocalStore(Path(store)))
    objects = Repository.open(CachedStore(far, Path(cache), int(limit))).objects
    digests = sorted(found.key.rpartition("/")[2] for found in far.list("objects/"))
    order = random.Random(int(seed))
    print("ready", flush=True)
    for _ in range(int(rounds)):
        order.shuffle(digests)
        for digest in digests:
            data = objects.get(digest)
            middle = len(data) // 2
            part = Slice(object=digest, offset=middle, size_bytes=10, digest=objects.digest(data[middle : middle + 10]))
            assert objects.read(part) == data[middle : middle + 10]
    fetched = [where for where in far.gets if where.startswith("objects/")]
    print(len(digests) * int(rounds), len(fetched), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
