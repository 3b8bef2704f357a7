"""The raw limit: a folder's bytes to S3 and back, in parallel, without names, hashes or checks.

Usage: store_raw.py BUCKET PREFIX {put,get} FOLDER. Files of 1 MiB or more are objects of 64 MiB, smaller files packs of
8 MiB, 8 at a time. Each downloaded object becomes one file.
"""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
from obstore.store import S3Store

_CHUNK, _PACK, _SMALL, _THREADS = 64 << 20, 8 << 20, 1 << 20, 8

bucket, prefix, action, folder = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
authority = os.environ.get("AWS_CA_BUNDLE")
store = S3Store(
    bucket,
    prefix=prefix,
    endpoint=os.environ["AWS_ENDPOINT_URL"],
    region=os.environ["AWS_DEFAULT_REGION"],
    client_options={
        "allow_http": True,
        "timeout": "300s",
        **({"root_certificate": Path(authority).read_bytes()} if authority else {}),
    },
    unsigned_payload=True,
)


def pieces() -> Iterator[bytes]:
    pack = bytearray()
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            continue
        with open(path, "rb", buffering=0) as file:
            if path.stat().st_size < _SMALL:
                pack += file.read()
                if len(pack) >= _PACK:
                    yield bytes(pack)
                    pack = bytearray()
                continue
            while chunk := file.read(_CHUNK):
                yield chunk
    if pack:
        yield bytes(pack)


def put(job: tuple[int, bytes]) -> None:
    obstore.put(store, f"{job[0]:06d}", job[1], use_multipart=False)


def get(name: str) -> None:
    (folder / name).write_bytes(obstore.get(store, name).bytes())


with ThreadPoolExecutor(_THREADS) as pool:
    if action == "put":
        waiting = []
        for job in enumerate(pieces()):
            waiting.append(pool.submit(put, job))
            if len(waiting) >= _THREADS:
                waiting.pop(0).result()
        for future in waiting:
            future.result()
    else:
        folder.mkdir()
        list(pool.map(get, [found["path"] for page in obstore.list(store) for found in page]))
