"""Forged checkpoints: none loads, none runs code, none allocates memory for sizes that it only claims."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from m5ws.errors import CorruptObject, M5Error
from m5ws.records import codec
from m5ws.records.checkpoint import Checkpoint, Content, Shard
from m5ws.records.checkpoint import Tensor as TensorRecord
from m5ws.repository import contents
from m5ws.repository.repository import Repository
from m5ws.training.backends.base import NoCopyStager
from m5ws.training.backends.torch_backend import TorchBackend
from m5ws.training.checkpoint import checkpointing
from m5ws.training.runtime.context import ActiveRank
from m5ws.training.state.plain_state import RestoreError, decode
from tests.support.records import contents as forged
from tests.support.records import planted, tensor_states

_HUGE = 2**40


@pytest.fixture
def trained(in_process: Any, repo: Repository) -> "Loader":
    return Loader(in_process, repo)


class Loader:
    """A model and its checkpoint; loads any content as a resumed attempt does."""

    def __init__(self, in_process: Any, repo: Repository) -> None:
        self.repo = repo
        self._in_process = in_process
        self.model = torch.nn.Linear(4, 3)
        with torch.no_grad():
            self.model.weight.fill_(1.0)
        self.backend = TorchBackend(self.model, torch.optim.SGD(self.model.parameters(), lr=0.1))
        saved = self.backend.stage(NoCopyStager()).save(repo.objects, None, ())
        state = planted.whole(repo.objects, codec.encode_plain({"backend": saved.rank}))
        self.fields: dict[str, Any] = {
            "common": planted.whole(repo.objects, codec.encode_plain({"backend": saved.common})),
            "fingerprints": planted.whole(repo.objects, codec.encode_plain({})),
        }
        self.sound = tensor_states.alone(saved, repo.objects, state=state, **self.fields)
        self.tensors = contents.tensors(repo.objects, self.sound)
        self.states = (state,)

    def load(self, hostile: Content) -> BaseException | None:
        """Publish the content's records unchanged, and load them; return the error."""
        objects = self.repo.objects
        digest = objects.put_record(
            Checkpoint(run="r", snapshot="0" * 64, attempt=1, step=1, content=objects.put_record(hostile))
        )

        def script() -> None:
            from m5ws.training.runtime import context

            active = context.active()
            assert isinstance(active, ActiveRank)
            checkpointing.load(active, self.backend, None, digest)

        error: BaseException | None = self._in_process(script)[1]
        return error


def test_a_sound_checkpoint_loads(trained: Loader) -> None:
    with torch.no_grad():
        trained.model.weight.zero_()
    assert trained.load(trained.sound) is None
    assert bool((trained.model.weight == 1.0).all())


Change = Callable[[TensorRecord], TensorRecord]


def _with(**fields: Any) -> Change:
    return lambda tensor: msgspec.structs.replace(tensor, **fields)


def _shards(*boxes: tuple[tuple[int, ...], tuple[int, ...]]) -> Change:
    """Cut the 3 × 4 tensor of 48 bytes into boxes (offsets, sizes), with parts of the claimed sizes."""

    def cut(tensor: TensorRecord) -> TensorRecord:
        whole = tensor.shards[0].parts[0]
        shards = []
        for offsets, sizes in boxes:
            size_bytes = 4 * max(1, abs(int(torch.tensor(sizes).prod())))
            part = msgspec.structs.replace(whole, size_bytes=size_bytes)
            shards.append(Shard(offsets=offsets, sizes=sizes, parts=(part,)))
        return msgspec.structs.replace(tensor, shards=tuple(shards))

    return cut


def _claims(size_bytes: int, times: int = 1) -> Change:
    def claim(tensor: TensorRecord) -> TensorRecord:
        (shard,) = tensor.shards
        part = msgspec.structs.replace(shard.parts[0], size_bytes=size_bytes)
        return msgspec.structs.replace(tensor, shards=(msgspec.structs.replace(shard, parts=(part,) * times),))

    return claim


def _both(*changes: Change) -> Change:
    def change(tensor: TensorRecord) -> TensorRecord:
        for one in changes:
            tensor = one(tensor)
        return tensor

    return change


LIES: dict[str, Change] = {
    "a type of more bytes": _with(dtype="float64"),
    "a type of fewer bytes": _with(dtype="bfloat16"),
    "no type": _with(dtype=""),
    "an unknown type": _with(dtype="float37"),
    "a function for a type": _with(dtype="load"),
    "a module for a type": _with(dtype="os"),
    "a hidden name for a type": _with(dtype="__builtins__"),
    "a path for a type": _with(dtype="serialization.load"),
    "another shape": _with(shape=(3, 5)),
    "a shape of fewer dimensions": _with(shape=(12,)),
    "a shape of no elements": _with(shape=(0, 4)),
    "a shape below zero": _with(shape=(-3, -4)),
    "a shape of 2**63": _with(shape=(2**63, 4)),
    "4 TB in its shape alone": _with(shape=(_HUGE, 1)),
    "4 TB in its shape and its shard": _both(_with(shape=(_HUGE, 1)), _shards(((0, 0), (_HUGE, 1)))),
    "10 GB in a part": _claims(10**10),
    "a part below zero": _claims(-48),
    "the same part twice": _claims(48, 2),
    "half of its bytes": _claims(24),
    "no shards": _with(shards=()),
    "a shard is missing": _shards(((0, 0), (2, 4))),
    "shards that overlap": _shards(((0, 0), (2, 4)), ((1, 0), (2, 4))),
    "shards that overlap and leave a hole": _shards(((0, 0), (2, 4)), ((0, 0), (1, 4))),
    "the same shard twice": _shards(((0, 0), (3, 2)), ((0, 0), (3, 2))),
    "a pinwheel with a hole": _shards(((0, 0), (1, 3)), ((0, 3), (2, 1)), ((2, 1), (1, 3)), ((1, 0), (2, 1))),
    "a shard outside": _shards(((0, 0), (3, 2)), ((0, 3), (3, 2))),
    "a shard before the beginning": _shards(((-1, 0), (3, 4))),
    "a shard of more dimensions": _shards(((0, 0, 0), (3, 4, 1))),
}


@pytest.mark.parametrize("change", LIES.values(), ids=LIES.keys())
def test_a_false_tensor_record_is_refused(trained: Loader, change: Change) -> None:
    tensors = tuple(change(one) if one.name == "model.weight" else one for one in trained.tensors)
    objects = trained.repo.objects
    error = trained.load(forged.content(objects, tensors=tensors, ranks=trained.states, **trained.fields))
    # Another type or shape than the model's is no damage by itself.
    assert isinstance(error, CorruptObject | RestoreError), error
    assert "model.weight" in str(error) or "object " in str(error)
    assert bool((trained.model.weight == 1.0).all())


class _Code:
    """A pickle that leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self._path),))


STATES: dict[str, Callable[[Path], bytes]] = {
    "a pickle with code": lambda path: pickle.dumps({"backend": _Code(path)}),
    "nothing": lambda path: b"",
    "a list": lambda path: codec.encode_plain([1, 2]),
    "no backend": lambda path: codec.encode_plain({"fingerprints": {}}),
    "a backend that is text": lambda path: codec.encode_plain({"backend": "x", "fingerprints": {}}),
    "an empty backend": lambda path: codec.encode_plain({"backend": {}, "fingerprints": {}}),
    "100,000 lists in each other": lambda path: b"\x81\xa7backend" + b"\x91" * 100_000,
    "600 lists in each other": lambda path: codec.encode_plain(
        {"backend": {"groups": msgspec.Raw(b"\x91" * 600 + b"\xc0"), "devices": {}}, "fingerprints": {}}
    ),
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
def test_invalid_plain_state_is_refused_without_running_code(
    trained: Loader, tmp_path: Path, state: Callable[[Path], bytes]
) -> None:
    part = planted.whole(trained.repo.objects, state(tmp_path / "code-ran"))
    assert isinstance(trained.load(msgspec.structs.replace(trained.sound, common=part)), M5Error)
    assert not (tmp_path / "code-ran").exists()


def test_a_checkpoint_without_the_state_of_ranks_is_refused(trained: Loader) -> None:
    for hostile in (
        msgspec.structs.replace(trained.sound, parts=()),
        msgspec.structs.replace(trained.sound, world=2),
        msgspec.structs.replace(trained.sound, common=None),
        msgspec.structs.replace(trained.sound, format="files/1"),
    ):
        assert isinstance(trained.load(hostile), M5Error)


KINDS: dict[str, Any] = {
    "an unknown kind": {"!": "code"},
    "a kind that is a list": {"!": ["tuple"]},
    "a tensor of no type": {"!": "tensor", "dtype": "save", "shape": [1], "data": b"1234"},
    "a tensor of a huge shape": {"!": "tensor", "dtype": "uint8", "shape": [_HUGE], "data": b"1"},
    "a tensor without bytes": {"!": "tensor", "dtype": "uint8", "shape": [1]},
    "an array of objects": {"!": "array", "dtype": "|O", "shape": [1], "data": bytes(8)},
    "an array of another shape": {"!": "array", "dtype": "<f4", "shape": [7], "data": bytes(8)},
    "a scalar of nothing": {"!": "scalar", "dtype": "<f4", "data": b""},
    "a number that is none": {"!": "int", "hex": "__import__"},
    "a key that is a list": {"!": "dict", "items": [[[1], 2]]},
    "items that are a number": {"!": "tuple", "items": 7},
}


@pytest.mark.parametrize("value", KINDS.values(), ids=KINDS.keys())
def test_plain_data_of_an_unknown_encoding_is_refused(value: Any) -> None:
    with pytest.raises(RestoreError):
        decode({"state": value})
