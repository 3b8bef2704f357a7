"""Source file of a tree."""

import os
from pathlib import Path

import msgspec


class SourceFile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file to capture: `path` inside the tree, `location` on this machine (`os.fsdecode`d).

    `found` is the result of `lstat`, if it is already known.
    """

    path: bytes
    location: Path | str
    found: os.stat_result | None = None
