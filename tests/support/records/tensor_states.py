"""States of tensors by name that tests store and load on one rank or many, without a training."""

from typing import Any

import msgspec
import torch

from m5ws.records.checkpoint import Content
from m5ws.records.tree import Slice
from m5ws.repository import contents
from m5ws.repository.contents import PartList, Parts
from m5ws.repository.objects import Objects
from m5ws.training.backends import placement, shard_reader, shard_writer
from m5ws.training.backends.base import Saved
from m5ws.training.runtime import collectives
from m5ws.training.runtime.collectives import Group


def save(state: dict[str, torch.Tensor], objects: Objects, **fields: Any) -> Content:
    """Store a state of one rank."""
    table = placement.agree(placement.describe(state), None)
    share, whole = shard_writer.write(state, {}, table, 0, 1, objects)
    saved = Saved(share=share, whole=whole, table=table)
    return alone(saved, objects, **fields)


def alone(saved: Saved, objects: Objects, **fields: Any) -> Content:
    """Return the content of a save on one rank."""
    content = gathered(saved, objects, None, **fields)
    assert content is not None
    return content


def gathered(saved: Saved, objects: Objects, group: Group, state: Slice | None = None, **fields: Any) -> Content | None:
    """Return the content of a save on all ranks of a group, on its rank 0; collective."""
    rank = collectives.rank(group)
    share = msgspec.structs.replace(saved.share, state=state)

    def join(before: PartList, after: PartList) -> PartList:
        return before.joined(after, objects.put)

    parts = collectives.reduce(contents.one_share(rank, share), join, group)
    if parts is None:
        return None
    if saved.whole.rows:
        parts = join(parts, contents.one_share(collectives.world(group), saved.whole))
    return Content(
        **{"format": "dcp/1", **fields},
        world=collectives.world(group),
        tensors=objects.put_record(contents.make_table(saved.table)) if saved.table else None,
        parts=parts.all(objects.put),
        apart=saved.apart,
    )


def load(state: dict[str, torch.Tensor], objects: Objects, content: Content) -> None:
    """Fill a state of one rank."""
    table = contents.load_table(objects, content)
    shard_reader.read(state, table, Parts(objects, content), 0, objects)
