"""Storing the output files of an attempt. Secrets in logs are masked.

All complete files are stored. Of an attempt that did not finish, a second list has the files that a resume gets: the
choice destroys no file (`resume_files`).
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import msgspec

from m5ws import secret_scan
from m5ws.errors import UNREADABLE
from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Content
from m5ws.records.ledger import OutputsStored
from m5ws.records.outputs import OutputFiles
from m5ws.records.run import Run
from m5ws.records.tree import Entry, Packing, Tree
from m5ws.repository import outputs
from m5ws.repository.files import trees
from m5ws.repository.files.index import Index
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.repository import Repository
from m5ws.runs.outputs import checkpoint_formats, complete_files, restored_outputs, resume_files
from m5ws.runs.outputs.complete_files import InspectedFiles

_log = logging.getLogger(__name__)
_PIECE_BYTES = 2**24


class PendingOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """Output files that the store did not take: their paths in the attempt's work directory.

    `unfinished`: the attempt did not finish, so files may lack their end.
    """

    paths: tuple[bytes, ...]
    unfinished: bool = False


def content(repo: Repository, run: Run, files: Sequence[SourceFile], index: Index | None = None) -> Digest:
    """Store files, and return the digest of the `Content` that lists them. Raises M5Error, OSError."""
    with _masked(files) as stored:
        written = trees.write_tree(repo.objects, repo.locations, stored, index)
    return repo.objects.put_record(
        Content(format="files/1", world=run.spec.nproc or 1, tree=written.digest, packing=written.packing)
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


def record(
    repo: Repository,
    run: Run,
    name: str,
    files: Sequence[SourceFile],
    work: Path | None = None,
    index: Index | None = None,
) -> OutputFiles | None:
    """Store files, and return their record with a name of output files, not yet published; None if there are none.

    If they are those of an attempt that did not finish, in the directory `work`, files without their end are left out,
    and the record has the files that a resume gets. Files that are in the `index` are not read again. Raises M5Error,
    OSError.
    """
    attempt, _, moment = name.partition("-")
    inspected = complete_files.inspect(files) if work is not None else None
    wanted = files if inspected is None else inspected.complete
    if not wanted:
        return None
    stored, resume, folders = content(repo, run, wanted, index), None, tuple[bytes, ...]()
    if work is not None and inspected is not None:
        inspected.require_unchanged()
        resume = _content_to_resume(repo, run, name, stored, inspected, work)
        folders = complete_files.empty_folders(work, run.spec.outputs, restored_outputs.files(repo, resume or stored))
    return OutputFiles(
        run=run.id,
        snapshot=run.snapshot,
        attempt=int(attempt),
        moment=moment,
        content=stored,
        resume=resume,
        modified_s=_times(repo, run, name, wanted, stored, resume),
        folders=folders,
    )


def _times(
    repo: Repository, run: Run, name: str, files: Sequence[SourceFile], stored: Digest, resume: Digest | None
) -> tuple[float, ...]:
    """Return the modification times of the files that a resume gets, in order of their paths. 0 is unknown.

    All are unknown, (), if the store cannot be read.
    """
    try:
        left = {file.path: os.stat(file.location).st_mtime for file in files}
        written = restored_outputs.files(repo, stored)
        known = {(path, entry.digest): left[path] for path, entry in written.items()}
        if resume is not None and (before := restored_outputs.newest(repo, run.id, name)) is not None:
            known = restored_outputs.times(repo, before) | known
        chosen = restored_outputs.files(repo, resume or stored)
    except UNREADABLE as error:
        _log.warning("the modification times of the output files of run %s are not recorded: %s", run.id, error)
        return ()
    return tuple(known.get((path, chosen[path].digest), 0.0) for path in sorted(chosen))


def _content_to_resume(
    repo: Repository, run: Run, name: str, stored: Digest, inspected: InspectedFiles, work: Path
) -> Digest | None:
    """Store the list of files that a resume gets, and return the digest of its `Content`; None if it is `stored`."""
    try:
        before = restored_outputs.newest(repo, run.id, name)
        earlier = restored_outputs.files(repo, before.restored) if before is not None else {}
        files = restored_outputs.files(repo, stored)
        left = _left_files(repo, files, inspected, work)
        roots = [os.fsencode(os.path.normpath(folder)) for folder in run.spec.outputs]
        read = cache(lambda: restored_outputs.located(repo, before.restored) if before is not None else {})
        chosen = resume_files.choose(left, earlier, roots, lambda entry: _is_checkpoint(repo, read()[entry.path]))
        if chosen == files:
            return None
        return _store_list(repo, chosen, [stored, *([before.restored] if before is not None else [])])
    except UNREADABLE as error:
        # Such as damage in the store. The complete files are stored in any case.
        _log.warning("the earlier output files of run %s cannot be read: %s", run.id, error)
        return None


def _left_files(
    repo: Repository, files: dict[bytes, Entry], inspected: InspectedFiles, work: Path
) -> resume_files.LeftFiles:
    """Return the files that an attempt left, each under its real path, and links to them or their folders as links."""
    links = complete_files.links(work, [*files, *inspected.cut])

    def is_real(path: bytes) -> bool:
        return complete_files.is_real(path, links)

    entries = {path: entry for path, entry in files.items() if is_real(path)}
    for path, leads_to in links.items():
        target = os.path.relpath(leads_to, os.path.dirname(path))
        entries[path] = Entry(
            path=path, mode="link", size_bytes=len(target), digest=repo.objects.digest(target), link=target
        )
    return resume_files.LeftFiles(
        files=entries,
        checkpoints=frozenset(filter(is_real, inspected.checkpoints)),
        cut=frozenset(filter(is_real, inspected.cut)),
    )


def _is_checkpoint(repo: Repository, entry: Entry) -> bool:
    """Return True if a stored file, with the parts of small files, has the format of a checkpoint.

    Raises NotFound, CorruptObject.
    """
    begin = repo.objects.read(entry.parts[0])[: checkpoint_formats.BEGIN_BYTES] if entry.parts else b""
    return checkpoint_formats.is_checkpoint(bytes(begin))


def _store_list(repo: Repository, files: dict[bytes, Entry], contents: Sequence[Digest]) -> Digest:
    """Store a content that has files of other contents, and return its digest."""
    tree = Tree(entries=tuple(files[path] for path in sorted(files)))
    wanted = {bytes.fromhex(entry.digest) for entry in tree.entries}
    sources = [repo.objects.get_record(content, Content) for content in contents]
    packings = [repo.objects.get_record(source.packing, Packing) for source in sources if source.packing is not None]
    packs = {pack.object: pack for packing in packings for pack in packing.packs if not wanted.isdisjoint(pack.names)}
    packing = Packing(packs=tuple(pack for _, pack in sorted(packs.items()))) if packs else None
    return repo.objects.put_record(
        Content(
            format="files/1",
            world=sources[0].world,
            tree=repo.objects.put_record(tree),
            packing=repo.objects.put_record(packing) if packing is not None else None,
        )
    )


def publish(
    repo: Repository, run: Run, attempt: int, files: Sequence[SourceFile], work: Path | None = None
) -> OutputsStored | None:
    """Store files as `record` does, publish them as the final output of an attempt, and return the event.

    None if there are none. Raises M5Error, OSError.
    """
    name = outputs.name(attempt)
    if (written := record(repo, run, name, files, work)) is None:
        return None
    return OutputsStored(name=name, record=outputs.publish(repo, written), content=written.content)


def wait(record: Path, files: Sequence[SourceFile], *, unfinished: bool = False) -> None:
    """Write a list of output files, to be stored later, to the file `record`.

    They are those of an attempt that did not finish if `unfinished`.
    """
    waiting = PendingOutputs(paths=tuple(file.path for file in files), unfinished=unfinished)
    record.write_bytes(msgspec.msgpack.encode(waiting))


def publish_waiting(repo: Repository, run: Run, attempt: int, record: Path, work: Path) -> bool:
    """Store the files that `wait` listed. Return False if they no longer exist. Raises M5Error, OSError."""
    try:
        waiting = msgspec.msgpack.decode(record.read_bytes(), type=PendingOutputs)
    except codec.UNREADABLE:
        return False
    files = [SourceFile(path=path, location=os.path.realpath(work / os.fsdecode(path))) for path in waiting.paths]
    if not all(os.path.exists(file.location) for file in files):
        return False
    publish(repo, run, attempt, files, work if waiting.unfinished else None)
    return True
