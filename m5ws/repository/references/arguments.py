"""Arguments of a run, with the keys of files that its command names and its snapshot's code contains.

Config files, tokenizer and data are left out: the snapshot has them as parts of their own.
"""

import os

from m5ws.config.commands import arguments
from m5ws.config.commands.arguments import Arguments
from m5ws.records.base import Digest
from m5ws.records.run import LaunchSpec
from m5ws.repository.files import trees
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository

_FILE_BYTES = 256 * 1024
"""The largest file that is read. A larger file is data."""


def load(repo: Repository, snapshot_id: Digest, spec: LaunchSpec) -> Arguments:
    """Return the arguments of a launch of a snapshot. Raises NotFound, CorruptObject if it names a file."""
    return arguments.parse(spec.command, lambda path: _read(repo, snapshot_id, os.path.join(spec.directory, path)))


def _read(repo: Repository, snapshot_id: Digest, path: str) -> bytes | None:
    """Return a small file of a snapshot's code, None if there is none."""
    code = trees.load(repo.objects, snapshots.load(repo, snapshot_id).code.tree)
    wanted = os.fsencode(os.path.normpath(path))
    for entry in code.entries:
        if entry.path == wanted and entry.link is None and entry.size_bytes <= _FILE_BYTES:
            return trees.read_file(repo.objects, entry)
    return None
