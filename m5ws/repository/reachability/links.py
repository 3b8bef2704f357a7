"""Links between records.

This is the only module that reads them; `fsck`, `gc`, `prefetch`, `push` and `pull` use it.
"""

from collections.abc import Iterator

from m5ws.records.base import Digest, Record
from m5ws.records.checkpoint import Checkpoint, Content, Part, Table
from m5ws.records.outputs import OutputFiles
from m5ws.records.snapshot import Manifest, Snapshot
from m5ws.records.tree import Slice, Tree
from m5ws.repository import contents
from m5ws.repository.files import packs
from m5ws.repository.files.validation import check
from m5ws.repository.objects import Objects

Named = Slice | tuple[Digest, type[Record]]
"""A part of an object of bytes, or an object that is a record of a kind."""


def iter_links(objects: Objects, digest: Digest, record: object) -> Iterator[Named]:
    """Yield the objects that a record, stored as `digest`, names directly. Raises CorruptObject if it is invalid."""
    if isinstance(record, Snapshot):
        yield from ((tree, Tree) for tree in dict.fromkeys(record.trees.values()))
        yield from ((manifest, Manifest) for manifest in dict.fromkeys(each.manifest for each in record.remote))
    elif isinstance(record, Tree):
        check(objects, record.entries, digest)
        for entry in packs.locate(objects, record, digest).entries:
            yield from entry.parts
    elif isinstance(record, Checkpoint | OutputFiles):
        yield record.content, Content
    elif isinstance(record, Content):
        yield from ((each.part, Part) for each in record.parts)
        yield from (part for part in (record.common, record.fingerprints) if part is not None)
        if record.tensors is not None:
            yield record.tensors, Table
        if record.tree is not None:
            yield record.tree, Tree
    elif isinstance(record, Part):
        for share in record.shares:
            yield from contents.slices(share)
