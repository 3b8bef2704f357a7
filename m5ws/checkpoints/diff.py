"""Differences between two checkpoints: tensors by their fingerprints, other state value by value.

A fingerprint depends on a tensor's bits and not on its sharding. So checkpoints of different numbers of ranks, and of
different ZeRO stages, are compared by the model's names. No tensor is read.
"""

from collections.abc import Iterator

import msgspec

from m5ws.checkpoints import plain_state
from m5ws.checkpoints.plain_state import StateChange
from m5ws.checkpoints.resolve import CheckpointRef
from m5ws.errors import CorruptObject
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.repository import contents
from m5ws.repository.repository import Repository


class TensorChange(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that differs. A side is its description with a fingerprint; None without the tensor."""

    name: str
    a: str | None
    b: str | None


class CheckpointDiff(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between two checkpoints; `notes` describe the limits of the comparison."""

    a: CheckpointRef
    b: CheckpointRef
    tensors: tuple[TensorChange, ...]
    state: tuple[StateChange, ...]
    tensors_equal: int
    notes: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return not (self.tensors or self.state)


def compare(repo: Repository, a: CheckpointRef, b: CheckpointRef) -> CheckpointDiff:
    """Compare two checkpoints. Raises NotFound, CorruptObject, UnknownSchema."""
    records = (repo.objects.get_record(checkpoint.digest, Checkpoint) for checkpoint in (a, b))
    old, new = (repo.objects.get_record(record.content, Content) for record in records)
    before, after = _tensors(repo, old), _tensors(repo, new)
    names = sorted(before.keys() | after.keys())
    pairs = ((name, before.get(name), after.get(name)) for name in names)
    tensors = tuple(TensorChange(name=name, a=left, b=right) for name, left, right in pairs if left != right)
    return CheckpointDiff(
        a=a,
        b=b,
        tensors=tensors,
        state=tuple(plain_state.changes(repo.objects, old, new, ranks=_are_comparable(old, new))),
        tensors_equal=len(names) - len(tensors),
        notes=tuple(_notes(old, new)),
    )


def _tensors(repo: Repository, content: Content) -> dict[str, str]:
    """Return the type, shape and fingerprint of each tensor. DeepSpeed's files have other tensors than the model."""
    if content.fingerprints is None:
        if content.common is not None:
            raise CorruptObject("the checkpoint has no fingerprints of its tensors")
        return {}
    fingerprints = plain_state.read(repo.objects, content.fingerprints)
    table = contents.load_table(repo.objects, content)
    shapes = {tensor.name: f"{tensor.dtype} {list(tensor.shape)}, " for tensor in table}
    # After the @ are the ranks that held the tensor.
    return {name: f"{shapes.get(name, '')}{str(value).partition('@')[0]}" for name, value in fingerprints.items()}


def _are_comparable(a: Content, b: Content) -> bool:
    """Return True if the state of each rank has a counterpart."""
    return a.world == b.world and a.format == b.format


def _notes(a: Content, b: Content) -> Iterator[str]:
    if a.format != b.format:
        yield f"the formats are {a.format} and {b.format}: optimizer state has different names"
    if a.world != b.world:
        yield f"the numbers of ranks are {a.world} and {b.world}: the state of single ranks is not compared"
    if "deepspeed/1" in (a.format, b.format):
        yield "of DeepSpeed's tensors, parameters, buffers and optimizer state are compared, without padding"
