"""The output files of all nodes of an attempt, merged in the order of nodes.

Nodes may write one path only with equal content. A resume restores the merged files on each node, so a restored file
that a node left as it was yields to the change, or the removal, by another node.
"""

from collections.abc import Sequence

import msgspec

from m5ws.errors import M5Error
from m5ws.outputs.collect import folders_of, shown
from m5ws.records.checkpoint import Content
from m5ws.records.outputs import OutputFiles
from m5ws.records.tree import Entry
from m5ws.repository.files import trees
from m5ws.repository.references import outputs
from m5ws.repository.repository import Repository


class OutputsConflict(M5Error):
    """Two nodes of an attempt left different content at one path."""

    hint = (
        "Give the files of each node paths of their own, for example with the rank. `m5ws outputs RUN DIR --node N` "
        "writes the files of one node, and `m5ws fork` continues from a checkpoint with a changed script."
    )


class MergedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Output files of one moment, as in `OutputFiles`, with modification times by path in nanoseconds."""

    entries: tuple[Entry, ...]
    modified_ns: dict[bytes, int]
    folders: dict[bytes, int]
    links: dict[bytes, bytes]


class _NodeFiles:
    """The output files of one node. `values` has the content of each path: a digest, or the target of a link."""

    def __init__(self, repo: Repository, record: OutputFiles) -> None:
        content = repo.objects.get_record(record.content, Content)
        tree = trees.load(repo.objects, content.tree).entries if content.tree is not None else ()
        self.record, self.restored, self.links = record, set(record.restored), dict(record.links)
        self.entries = {entry.path: entry for entry in tree}
        self.modified_ns = dict(zip(self.entries, record.modified_ns, strict=False))
        self.values: dict[bytes, str | bytes] = {path: entry.digest for path, entry in self.entries.items()}
        self.values.update(self.links)


def load(repo: Repository, run: str, names: Sequence[str]) -> MergedFiles:
    """Return the merged output files with these names. Raises as `merge`."""
    return merge(repo, [outputs.find(repo, run, name)[1] for name in names])


def merge(repo: Repository, records: Sequence[OutputFiles]) -> MergedFiles:
    """Return the merged output files of nodes. Raises OutputsConflict, NotFound, CorruptObject."""
    nodes = [_NodeFiles(repo, record) for record in records]
    paths = sorted({path for node in nodes for path in node.values})
    chosen = {path: node for path in paths if (node := _choose(nodes, path)) is not None}
    folders = {path: time_ns for node in reversed(nodes) for path, time_ns in node.record.folders}
    _refuse_folders(nodes, chosen)
    files = {path: node for path, node in chosen.items() if path in node.entries}
    return MergedFiles(
        entries=tuple(node.entries[path] for path, node in files.items()),
        modified_ns={path: node.modified_ns[path] for path, node in files.items() if path in node.modified_ns},
        folders=folders,
        links={path: node.links[path] for path, node in chosen.items() if path in node.links},
    )


def find_conflict(repo: Repository, run: str, attempt: int) -> str | None:
    """Return the conflict of the final output files of an attempt, in words; None if it has none. Raises as `merge`."""
    try:
        load(repo, run, outputs.at(outputs.names(repo, run), outputs.name(attempt)))
    except OutputsConflict as error:
        return str(error)
    return None


def _choose(nodes: Sequence[_NodeFiles], path: bytes) -> _NodeFiles | None:
    """Return the first node that wrote a path, or that kept a restored path which no node removed; None without one."""
    having = [node for node in nodes if path in node.values]
    writers = [node for node in having if path not in node.restored]
    for other in writers[1:]:
        if other.values[path] != writers[0].values[path]:
            raise _conflict(path, writers[0], other)
    return next(iter(writers or (having if len(having) == len(nodes) else ())), None)


def _refuse_folders(nodes: Sequence[_NodeFiles], chosen: dict[bytes, _NodeFiles]) -> None:
    """Raise OutputsConflict for a path that is a folder on one node, and a file or a link on another."""
    folders = [(folder, owner) for path, owner in chosen.items() for folder in folders_of(path)]
    for folder, owner in (*folders, *((path, node) for node in nodes for path, _ in node.record.folders)):
        if folder in chosen and folder not in owner.values:
            raise _conflict(folder, chosen[folder], owner)


def _conflict(path: bytes, one: _NodeFiles, other: _NodeFiles) -> OutputsConflict:
    numbers = sorted((one.record.node, other.record.node))
    return OutputsConflict(
        f"node {numbers[0]} and node {numbers[1]} of attempt {one.record.attempt} wrote different content to "
        f"{shown(path)}, of run {one.record.run}"
    )
