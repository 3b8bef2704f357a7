"""Contents of checkpoints with given tensors and byte items, which tests plant and forge."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from m5ws.records import codec
from m5ws.records.checkpoint import Box, Content, OwnTensor, Tensor
from m5ws.records.tree import Slice
from m5ws.repository import contents
from m5ws.repository.contents import Stored, TableTensor
from m5ws.repository.objects import Objects


def content(
    objects: Objects,
    *,
    world: int = 1,
    tensors: Iterable[Tensor] = (),
    blobs: Mapping[str, Slice] = {},
    ranks: Sequence[Slice] = (),
    **fields: Any,
) -> Content:
    """Return a content whose shards and byte items are rank 0's. `ranks` are the plain states of ranks.

    A tensor called NAME@RANK is that rank's own.
    """
    ordered = sorted(tensors, key=lambda tensor: tensor.name)
    own = [tensor for tensor in ordered if "@" in tensor.name]
    shared = [tensor for tensor in ordered if "@" not in tensor.name]
    table = [TableTensor(tensor.name, tensor.dtype, tensor.shape, None) for tensor in shared]
    stored = [
        Stored(place, Box(shard.offsets, shard.sizes), shard.parts)
        for place, tensor in enumerate(shared)
        for shard in tensor.shards
    ]
    parts = contents.PartList((), 0, ())
    for rank in range(world) if ordered or blobs or ranks else ():
        mine = [
            (OwnTensor(tensor.name, tensor.dtype, tensor.shape), tensor.shards[0].parts)
            for tensor in own
            if tensor.name.endswith(f"@{rank}")
        ]
        share = contents.make_share(stored if rank == 0 else (), mine, blobs if rank == 0 else {})
        share = msgspec.structs.replace(share, state=ranks[rank] if rank < len(ranks) else None)
        parts = parts.joined(contents.one_share(rank, share), objects.put)
    return Content(
        **{"format": "dcp/1", **fields},
        world=world,
        tensors=objects.put(codec.encode(contents.make_table(table))) if table else None,
        parts=parts.all(objects.put),
        apart=tuple(sorted({tensor.name.partition("@")[0] for tensor in own})),
    )
