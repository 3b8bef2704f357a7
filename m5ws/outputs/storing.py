"""Storing the output files of an attempt: all of them, as they are.

Secrets in logs and in targets of links are masked.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from m5ws import secret_scan
from m5ws.outputs import collect, saved
from m5ws.outputs.collect import Outputs
from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Content
from m5ws.records.ledger import OutputsStored
from m5ws.records.outputs import OutputFiles
from m5ws.records.run import Run
from m5ws.repository import removals
from m5ws.repository.files import trees
from m5ws.repository.files.index import Index
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.references import outputs as stored_outputs
from m5ws.repository.repository import Repository

_PIECE_BYTES = 2**24


def content(repo: Repository, run: Run, files: Sequence[SourceFile], index: Index | None = None) -> Digest:
    """Store files, and return the digest of the `Content` that lists them. Raises M5Error, OSError."""
    with _masked(files) as stored:
        written = trees.write_tree(repo.objects, stored, index)
    return repo.objects.put_record(Content(format="files/1", world=run.spec.nproc or 1, tree=written.digest))


@contextmanager
def _masked(files: Sequence[SourceFile]) -> Iterator[list[SourceFile]]:
    """Yield the files, with a masked copy in place of each log that contains a secret."""
    with tempfile.TemporaryDirectory(prefix="m5ws-logs-") as folder:
        stored = list(files)
        for number, file in enumerate(files):
            if file.path.endswith(b".log"):
                copy = Path(folder) / str(number)
                if _mask(Path(file.location), copy):
                    stored[number] = SourceFile(path=file.path, location=copy)
        yield stored


def _mask(log: Path, copy: Path) -> bool:
    """Write a copy of a log with its secrets masked. Return False if it has none."""
    changed = False
    with log.open("rb") as source, copy.open("wb") as target:
        while lines := b"".join(source.readlines(_PIECE_BYTES)):
            text = lines.decode("utf-8", "surrogateescape")
            masked = secret_scan.masked(text)
            changed = changed or masked != text
            target.write(masked.encode("utf-8", "surrogateescape"))
    shutil.copymode(log, copy)
    return changed


def record(repo: Repository, run: Run, name: str, moment: Outputs, index: Index | None = None) -> OutputFiles | None:
    """Store the outputs of a moment, and return their record with a name of output files, not yet published.

    None if there is no file, and no earlier record that a resume would restore instead. Files that are in the `index`
    are not read again. Raises M5Error, OSError; Removed before anything is uploaded for a removed run.
    """
    if not moment.files and not (run.spec.outputs and stored_outputs.names(repo, run.id)):
        return None
    removals.fence(repo, run.id)
    attempt, node, moment_name = name.split("-")
    files = sorted(moment.files, key=lambda file: file.path)
    return OutputFiles(
        run=run.id,
        snapshot=run.snapshot,
        attempt=int(attempt),
        node=int(node),
        moment=moment_name,
        content=content(repo, run, files, index),
        modified_ns=tuple(collect.status(file).st_mtime_ns for file in files),
        folders=moment.folders,
        links=tuple((path, os.fsencode(secret_scan.masked(os.fsdecode(target)))) for path, target in moment.links),
        restored=moment.restored,
    )


def publish(repo: Repository, run: Run, attempt: int, left: Outputs, node: int = 0) -> OutputsStored | None:
    """Store the outputs that a node of an attempt left, publish them as its final outputs, and return the event.

    None if there are no files. Raises M5Error, OSError.
    """
    name = stored_outputs.name(attempt, node=node)
    if (written := record(repo, run, name, left)) is None:
        return None
    digest = stored_outputs.publish(repo, written)
    return saved.event(repo, name, digest, written) if left.files else None


def wait(record: Path, left: Outputs) -> None:
    """Write the paths of output files, to be stored later, to the file `record`."""
    record.write_bytes(msgspec.msgpack.encode([file.path for file in left.files]))


def publish_waiting(repo: Repository, run: Run, attempt: int, directory: Path, record: Path) -> bool:
    """Store the files that `wait` listed, unless they are stored. Return False if some no longer exist.

    Raises M5Error, OSError.
    """
    if stored_outputs.name(attempt) in stored_outputs.names(repo, run.id):
        return True
    try:
        waiting = msgspec.msgpack.decode(record.read_bytes(), type=list[bytes])
    except codec.UNREADABLE:
        return False
    left = collect.collect_left(directory, run.spec.outputs)
    if left is None or {file.path for file in left.files} != set(waiting):
        return False
    publish(repo, run, attempt, left)
    return True
