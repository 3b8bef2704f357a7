"""File that a tree is made from."""

import os
from pathlib import Path

import msgspec


class SourceFile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file of the author's to be captured: `path` inside the tree, `location` on this machine (`os.fsdecode`d).

    `found` is what `lstat` said of it, where that was asked already.
    """

    path: bytes
    location: Path | str
    found: os.stat_result | None = None
