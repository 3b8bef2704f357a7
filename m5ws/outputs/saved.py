"""Output files in the store: the copies of a run, and the files of each."""

import time
from collections.abc import Mapping

import msgspec

from m5ws.errors import NotFound
from m5ws.outputs import merging
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Content
from m5ws.records.ledger import OutputsStored
from m5ws.records.outputs import OutputFiles
from m5ws.repository import bindings, concurrency
from m5ws.repository.files import trees
from m5ws.repository.references import outputs
from m5ws.repository.repository import Repository


class StoredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """Output files of an attempt at one moment in the store: the names of each node's files, in the order of nodes."""

    run: str
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The names, for people."""
        return ", ".join(self.names)

    @property
    def attempt(self) -> int:
        return outputs.attempt_of(self.names[0])

    @property
    def final(self) -> bool:
        """True if all files were stored at the attempt's end."""
        return all(map(outputs.is_final, self.names))


class OutputsRow(msgspec.Struct, frozen=True, kw_only=True):
    """Output files in a list. `when_s`: seconds since the epoch, by the store's clock."""

    name: str
    attempt: int
    final: bool
    when_s: float
    content: Digest
    files: int
    size_bytes: int


def listing(repo: Repository, run: str, recorded: Mapping[str, OutputsStored] | None = None) -> tuple[OutputsRow, ...]:
    """Return all output files of a run, oldest first. Raises NotFound, CorruptObject.

    `recorded` has events of the ledger by name; these output files are not read.
    """
    events = recorded or {}
    return tuple(concurrency.for_each(lambda name: _row(repo, run, name, events.get(name)), outputs.names(repo, run)))


def event(repo: Repository, name: str, digest: Digest, stored: OutputFiles) -> OutputsStored:
    """Return the event about stored output files, for the ledger. Raises NotFound, CorruptObject."""
    content = repo.objects.get_record(stored.content, Content)
    if content.tree is None:
        raise NotFound(f"content {stored.content} has no files")
    tree = trees.load(repo.objects, content.tree)
    return OutputsStored(
        time_s=time.time(),
        name=name,
        record=digest,
        content=stored.content,
        files=len(tree.entries),
        size_bytes=tree.size_bytes,
    )


def _row(repo: Repository, run: str, name: str, known: OutputsStored | None) -> OutputsRow:
    files = known or event(repo, name, *bindings.files(repo.objects, outputs.key(run, name)))
    return OutputsRow(
        name=name,
        attempt=outputs.attempt_of(name),
        final=outputs.is_final(name),
        when_s=stored_s(repo, run, name),
        content=files.content,
        files=files.files,
        size_bytes=files.size_bytes,
    )


def stored_s(repo: Repository, run: str, name: str) -> float:
    """Return the time at which output files were stored, by the store's clock; 0 if they are gone."""
    stat = repo.store.stat(outputs.key(run, name))
    return stat.modified_s if stat is not None else 0.0


def newest(repo: Repository, run: str, attempt: int | None = None, node: int | None = None) -> StoredOutputs | None:
    """Return the newest output files of a run, or of one attempt, or of one node; None if there are none."""
    names = [name for name in outputs.names(repo, run) if attempt in (None, outputs.attempt_of(name))]
    names = [name for name in names if node in (None, outputs.node_of(name))]
    return StoredOutputs(run=run, names=outputs.at(names, names[-1])) if names else None


def load(repo: Repository, run: str, name: str) -> StoredOutputs:
    """Return the output files of the moment of a name, of all nodes."""
    return StoredOutputs(run=run, names=outputs.at(outputs.names(repo, run), name))


def newest_to_restore(repo: Repository, run: str) -> StoredOutputs | None:
    """Return a run's newest output files; None if they have no file. Raises OutputsConflict, CorruptObject."""
    stored = newest(repo, run)
    return stored if stored is not None and merging.load(repo, run, stored.names).entries else None


def require_newest(repo: Repository, run: str, attempt: int | None = None, node: int | None = None) -> StoredOutputs:
    """Return the newest output files of a run, or of one attempt, or of one node. Raises NotFound if there are none."""
    stored = newest(repo, run, attempt, node)
    if stored is not None:
        return stored
    place = " and ".join(f"{kind} {n}" for kind, n in (("attempt", attempt), ("node", node)) if n is not None)
    files, hint = "output files", "Set `[run] outputs` in m5ws.toml to the files and folders that the script writes."
    if place:
        files, hint = f"output files of {place}", f"`m5ws outputs {run}` lists the output files that the store has."
    raise NotFound(f"run {run} has no {files} in the store", hint=hint)
