"""Storing the final output files of an attempt. Secrets in logs are masked."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from m5ws import secret_scan
from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Content
from m5ws.records.ledger import OutputsStored
from m5ws.records.outputs import OutputFiles
from m5ws.records.run import Run
from m5ws.repository import outputs
from m5ws.repository.files import trees
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.repository import Repository

_PIECE_BYTES = 2**24


class PendingOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """Output files that the store did not take: their paths in the attempt's work directory."""

    paths: tuple[bytes, ...]


def content(repo: Repository, run: Run, files: Sequence[SourceFile]) -> Digest:
    """Store files, and return the digest of the `Content` that lists them. Raises M5Error, OSError."""
    with _masked(files) as stored:
        written = trees.write_tree(repo.objects, repo.locations, stored)
    return repo.objects.put_record(
        Content(format="files/1", world=run.spec.nproc, tree=written.digest, packing=written.packing)
    )


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


def publish(repo: Repository, run: Run, attempt: int, files: Sequence[SourceFile]) -> OutputsStored:
    """Store files, publish them as the final output of an attempt, and return the event. Raises M5Error, OSError."""
    record = OutputFiles(
        run=run.id, snapshot=run.snapshot, attempt=attempt, moment=outputs.FINAL, content=content(repo, run, files)
    )
    return OutputsStored(name=outputs.name(attempt), record=outputs.publish(repo, record), content=record.content)


def wait(record: Path, files: Sequence[SourceFile]) -> None:
    """Write a list of output files, to be stored later, to the file `record`."""
    record.write_bytes(msgspec.msgpack.encode(PendingOutputs(paths=tuple(file.path for file in files))))


def publish_waiting(repo: Repository, run: Run, attempt: int, record: Path, work: Path) -> bool:
    """Store the files that `wait` listed. Return False if they no longer exist. Raises M5Error, OSError."""
    try:
        waiting = msgspec.msgpack.decode(record.read_bytes(), type=PendingOutputs)
    except codec.UNREADABLE:
        return False
    files = [SourceFile(path=path, location=os.path.realpath(work / os.fsdecode(path))) for path in waiting.paths]
    if not all(os.path.exists(file.location) for file in files):
        return False
    publish(repo, run, attempt, files)
    return True
