"""Contents of several ranks with changed records, and with valid digests: the state's bits, or a known error.

The changes are of a writer who means harm. Damage alone does not have the right digest, and is found when it is read.
"""

import math
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from m5ws.checkpoints import diff, listing, plain_state
from m5ws.errors import M5Error
from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Axis, Box, Content, OwnTensor, Share
from m5ws.records.store import Format
from m5ws.records.tree import Slice
from m5ws.repository import contents, cuts
from m5ws.repository.contents import PartList, Parts, Stored, TableTensor
from m5ws.repository.fsck.records import Records
from m5ws.repository.objects import Objects, write_parts
from m5ws.repository.repository import Repository
from m5ws.repository.tensors import PartCache, TensorReader, layout
from m5ws.training.backends.base import NoCopyStager
from m5ws.training.backends.torch_backend import TorchBackend
from m5ws.training.fingerprint import fingerprint
from m5ws.training.state import tensor_bytes
from tests.support.records import planted
from tests.support.stores.memory_store import MemoryStore

WORLD = 3
_PIECE_BYTES = 24
TABLE = [
    TableTensor("buffer.cut", "float32", (7, 5), (Axis(0, 3, 1),)),
    TableTensor("buffer.empty", "float32", (0, 3), (Axis(0, 3, 1),)),
    TableTensor("buffer.irregular", "int8", (5, 2), None),
    TableTensor("buffer.late", "int8", (3, 6), (Axis(1, 2, 1),), 1),
    TableTensor("buffer.one", "float32", (), (), 2),
    TableTensor("buffer.shared", "float32", (4,), (), WORLD),
]
BOXES = {0: Box((0, 0), (2, 2)), 1: Box((2, 0), (3, 1)), 2: Box((2, 1), (3, 1))}
OWN = "buffer.own"


def state() -> dict[str, torch.Tensor]:
    made = {
        tensor.name: (torch.arange(math.prod(tensor.shape)) % 100 + 1)
        .view(tensor.shape)
        .to(getattr(torch, tensor.dtype))
        for tensor in TABLE
    }
    return made | {OWN: torch.ones(2)}


def backend(tensors: dict[str, torch.Tensor]) -> TorchBackend:
    model = torch.nn.Module()
    for name, tensor in tensors.items():
        model.register_buffer(name.removeprefix("buffer."), tensor)
    return TorchBackend(model, None)


def stored(objects: Objects, tensor: torch.Tensor) -> tuple[Slice, ...]:
    data = tensor_bytes.readable(tensor)
    pieces = ((f"{start}", data[start : start + _PIECE_BYTES]) for start in range(0, data.nbytes, _PIECE_BYTES))
    return tuple(part for parts in write_parts(objects, pieces).values() for part in parts)


def share(objects: Objects, rank: int, plain: Slice) -> Share:
    held: list[Stored] = []
    for place, tensor in enumerate(TABLE):
        box = BOXES.get(rank) if tensor.axes is None else cuts.region(tensor.shape, tensor.axes, tensor.first, rank)
        if box is not None and all(box.sizes):
            value = state()[tensor.name][tuple(slice(at, at + n) for at, n in zip(box.offsets, box.sizes, strict=True))]
            held.append(Stored(place, box if tensor.axes is None else None, stored(objects, value)))
    own = [(OwnTensor(f"{OWN}@{rank}", "float32", (2,)), stored(objects, torch.ones(2)))] if rank < WORLD else []
    made = contents.make_share(held, own)
    return msgspec.structs.replace(made, state=plain) if rank < WORLD else made


class Sound:
    """A content of three ranks, and its records by name as plain data."""

    def __init__(self) -> None:
        self.repo = Repository.create(MemoryStore(), Format(chunk_bytes=40, small_bytes=16, pack_bytes=64))
        self.objects = self.repo.objects
        live = backend(state())
        saved = live.stage(NoCopyStager()).save(self.objects, None, ())
        own = planted.whole(self.objects, codec.encode_plain({"backend": saved.rank}))
        parts = PartList((), 0, ())
        for rank in range(WORLD + 1):
            made = contents.one_share(rank, share(self.objects, rank, own))
            # One part with the shares of two ranks, and others with one.
            parts = parts.joined(made, self.objects.put)
            parts = PartList(parts.all(self.objects.put), rank + 1, ()) if rank else parts
        self.content = Content(
            format="dcp/1",
            world=WORLD,
            tensors=self.objects.put_record(contents.make_table(TABLE)),
            parts=parts.stored,
            common=planted.whole(self.objects, codec.encode_plain({"backend": saved.common})),
            fingerprints=planted.whole(
                self.objects, codec.encode_plain(fingerprint.fingerprints(live.tensors(), None).values)
            ),
            apart=(OWN,),
        )
        assert self.content.tensors is not None
        digests = [self.content.tensors, *(each.part for each in self.content.parts)]
        self.root = msgspec.msgpack.decode(codec.encode(self.content))
        self.below = [msgspec.msgpack.decode(self.objects.get(digest)) for digest in digests]

    def changed(self, draw: random.Random) -> Digest:
        """Return a content in which one or two values of its records are changed."""
        root, below = self.root, [*self.below]
        for _ in range(draw.randint(1, 2)):
            which = draw.randrange(-2, len(below))
            if which < 0:
                root = changed(root, draw)
            else:
                below[which] = changed(below[which], draw)
        for number, (before, after) in enumerate(zip(self.below, below, strict=True)):
            if before is after or not isinstance(root, dict):
                continue
            digest = self.objects.put(codec.encode_plain(after))
            if number == 0:
                root = {**root, "tensors": digest}
            elif isinstance(listed := root.get("parts"), list) and number <= len(listed):
                first = self.content.parts[number - 1].first
                root = {**root, "parts": [*listed[: number - 1], [first, digest], *listed[number:]]}
        return self.objects.put(codec.encode_plain(root))


_NUMBERS = (0, 1, -1, 2, 3, 2**31, 10**12, 2**62, 2**63 - 1)


def changed(value: Any, draw: random.Random) -> Any:
    """Return plain data with one change, at any depth."""
    if isinstance(value, list | dict) and value and draw.random() < 0.9:
        made: Any = value.copy()
        place = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
        how = draw.randrange(12)
        if how == 0:
            del made[place]
        elif how == 1 and isinstance(made, list):
            made.insert(place, draw.choice(made))
        elif how == 2 and isinstance(made, list):
            draw.shuffle(made)
        elif how == 3 and isinstance(made, list):
            made = made * 100
        else:
            made[place] = changed(value[place], draw)
        return made
    if isinstance(value, int):
        return draw.choice([*_NUMBERS, value + 1, value - 1, value * 2])
    if isinstance(value, str):
        return draw.choice(["", value[1:], value + "x", "x" * 10**5, "0" * 64, "int8", TABLE[0].name, f"{OWN}@1"])
    if isinstance(value, bytes):
        return draw.choice([b"", value[:-1], value[:32], value * 2, value[32:] + value[:32]])
    return draw.choice([None, 0, [], {}, "x", [1, 2], True])


@pytest.fixture(scope="module")
def sound() -> Sound:
    return Sound()


def load(repo: Repository, content: Content) -> None:
    objects = repo.objects
    wanted = state()
    live = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    common = plain_state.read(objects, content.common) if content.common is not None else {}
    backend(live).load(objects, content, Parts(objects, content), common.get("backend", {}), None, None)
    assert all(torch.equal(live[name], wanted[name]) for name in wanted)


def export(repo: Repository, content: Content) -> None:
    objects = repo.objects
    wanted = state()
    for tensor in contents.tensors(objects, content):
        reader = TensorReader(PartCache(objects), layout(tensor))
        data = b"".join(reader.read(*window) for window in reader.windows())
        like = wanted.get(tensor.name)
        if like is not None and (tensor.dtype, tensor.shape) == (str(like.dtype)[6:], tuple(like.shape)):
            assert data == tensor_bytes.readable(like)


def show(repo: Repository, content: Content) -> None:
    msgspec.json.encode([*listing._tensors(repo, content), *listing._slices(repo, content)])
    list(plain_state.leaves(repo.objects, content))
    diff._tensors(repo, content)


READERS: dict[str, Callable[[Repository, Content], None]] = {"load": load, "export": export, "show": show}


def test_all_readers_accept_the_sound_content(sound: Sound) -> None:
    for reader in READERS.values():
        reader(sound.repo, sound.content)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_a_changed_content_gives_the_bits_of_the_state_or_a_known_error(sound: Sound, seed: int) -> None:
    digest = sound.changed(random.Random(seed))
    for reader in READERS.values():
        try:
            reader(sound.repo, sound.objects.get_record(digest, Content))
        except M5Error:
            continue
    # It keeps the faults of records, and raises none.
    Records(sound.objects).walk("run", digest, Content)
