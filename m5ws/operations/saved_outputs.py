"""Output files of a script in the store: a checkpoint of files, without tensors."""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from m5ws import codec
from m5ws.events import CheckpointPublished
from m5ws.ports import SourceFile
from m5ws.records import Checkpoint, Content, Digest, Run
from m5ws.repository import Repository, checkpoints, trees


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Output files that the store did not take: the checkpoint's name, and paths in the attempt's work directory."""

    name: str
    paths: tuple[bytes, ...]


def content(repo: Repository, run: Run, files: Sequence[SourceFile]) -> Digest:
    """Store files; return the digest of the `Content` that names them. Raises M5Error, OSError."""
    written = trees.write_tree(repo.objects, files)
    return repo.objects.put_record(
        Content(format="files/1", world=run.spec.nproc, tree=written.digest, packing=written.packing)
    )


def publish(repo: Repository, run: Run, name: str, files: Sequence[SourceFile]) -> CheckpointPublished:
    """Store files and publish them as checkpoint `name` of a run; return the event. Raises M5Error, OSError."""
    checkpoint = Checkpoint(
        run=run.id,
        snapshot=run.snapshot,
        attempt=checkpoints.attempt_of(name),
        step=checkpoints.step_of(name),
        content=content(repo, run, files),
    )
    return CheckpointPublished(
        step=checkpoint.step,
        name=name,
        checkpoint=checkpoints.publish(repo, checkpoint),
        content=checkpoint.content,
        outputs=True,
    )


def wait(record: Path, name: str, files: Sequence[SourceFile]) -> None:
    """Write down, in the file `record`, which output files are to be stored later."""
    waiting = Waiting(name=name, paths=tuple(file.path for file in files))
    record.write_bytes(msgspec.msgpack.encode(waiting))


def publish_waiting(repo: Repository, run: Run, record: Path, work: Path) -> bool:
    """Store the files that `wait` wrote down; return False if they are no longer there. Raises M5Error, OSError."""
    try:
        waiting = msgspec.msgpack.decode(record.read_bytes(), type=Waiting)
    except codec.UNREADABLE:
        return False
    files = [SourceFile(path=path, location=os.path.realpath(work / os.fsdecode(path))) for path in waiting.paths]
    if not all(os.path.exists(file.location) for file in files):
        return False
    publish(repo, run, waiting.name, files)
    return True
