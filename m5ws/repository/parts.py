"""Buffers to slices of stored objects, and back.

Large buffers are cut on a fixed grid of `Format.chunk_bytes`, each piece an object of its own; small ones
are joined, in the order given, into packs. Which object a byte lands in depends on sizes and order alone.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from m5ws.ports import Buffer
from m5ws.records import Slice
from m5ws.repository.objects import Objects

_THREADS = max(2, min(8, os.cpu_count() or 2))


def write_parts(objects: Objects, items: Iterable[tuple[str, Buffer]]) -> dict[str, tuple[Slice, ...]]:
    """Make buffers durable and return, by name, the slices that hold them; an empty buffer has none.

    At most `_THREADS` + 1 chunks or packs are in flight. The buffers may be reused once this has returned.
    """
    chunks: dict[str, list[Future[Slice]]] = {}
    packs: list[Future[dict[str, Slice]]] = []
    names: list[str] = []
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="m5ws-parts") as pool:
        window = _Window(_THREADS + 1)
        for name, piece in _plan(objects, items, names):
            if isinstance(piece, memoryview):
                chunks.setdefault(name, []).append(window.add(pool.submit(_put_chunk, objects, piece)))
            else:
                packs.append(window.add(pool.submit(_put_pack, objects, piece)))
        found = {name: tuple(future.result() for future in futures) for name, futures in chunks.items()}
        for pack in packs:
            found |= {name: (part,) for name, part in pack.result().items()}
    return {name: found.get(name, ()) for name in names}


def read_parts(objects: Objects, parts: Sequence[Slice], out: memoryview | None = None) -> memoryview:
    """Return the joined bytes of `parts`, each verified; written into `out` if given. Raises CorruptObject."""
    target = out if out is not None else memoryview(bytearray(sum(part.size_bytes for part in parts)))
    position = 0
    for part in parts:
        target[position : position + part.size_bytes] = objects.read(part)
        position += part.size_bytes
    return target


class _Window:
    """Bounds what is in flight, and so the memory that is held, by waiting for the oldest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pending: list[Future[object]] = []

    def add(self, future: Future) -> Future:  # type: ignore[type-arg]
        self._pending.append(future)
        if len(self._pending) > self._size:
            self._pending.pop(0).result()
        return future


_Pack = list[tuple[str, memoryview]]


def _plan(
    objects: Objects, items: Iterable[tuple[str, Buffer]], names: list[str]
) -> Iterator[tuple[str, memoryview | _Pack]]:
    """Yield chunks of large buffers and whole packs of small ones; every name is added to `names`."""
    form = objects.format
    pack: _Pack = []
    size = 0
    for name, buffer in items:
        names.append(name)
        view = memoryview(buffer).cast("B")
        if view.nbytes >= form.small_bytes:
            for start in range(0, view.nbytes, form.chunk_bytes):
                yield name, view[start : start + form.chunk_bytes]
        elif view.nbytes:
            if size + view.nbytes > form.pack_bytes:
                yield "", pack
                pack, size = [], 0
            pack.append((name, view))
            size += view.nbytes
    if pack:
        yield "", pack


def _put_chunk(objects: Objects, piece: memoryview) -> Slice:
    digest = objects.put(piece)
    return Slice(object=digest, offset=0, size_bytes=piece.nbytes, digest=digest)


def _put_pack(objects: Objects, pack: _Pack) -> dict[str, Slice]:
    joined = b"".join(view for _, view in pack)
    digest = objects.put(joined)
    found, offset = {}, 0
    for name, view in pack:
        found[name] = Slice(object=digest, offset=offset, size_bytes=view.nbytes, digest=objects.digest(view))
        offset += view.nbytes
    return found
