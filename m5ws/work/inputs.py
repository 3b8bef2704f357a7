"""The input files of an attempt: detection of changes, and removal after the attempt.

Their stamps are also in a file of the attempt's directory. So a later process can distinguish them from the files of a
script that was killed together with its supervisor.
"""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from m5ws.filesystem import Stamp, stamp, write_atomically
from m5ws.records import codec

_RECORD = "inputs"
"""Name of a file in an attempt's directory with a `_StampRecord`."""


class _StampRecord(msgspec.Struct, frozen=True, kw_only=True):
    begun_ns: int
    files: tuple[tuple[bytes, Stamp], ...]
    restored: tuple[tuple[bytes, Stamp], ...] = ()


class AttemptInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The `stamps` of an attempt's input files by path, and the time of its start in nanoseconds since the epoch.

    `restored` has the stamps of the output files of an earlier attempt that were restored.
    """

    begun_ns: int
    stamps: dict[Path, Stamp]
    restored: dict[Path, Stamp] = {}


def save(directory: Path, work: Path, given: AttemptInputs) -> None:
    """Write the inputs of an attempt, which are below `work`, into its directory. Raises OSError."""
    files, restored = (
        tuple((os.fsencode(path.relative_to(work)), known) for path, known in each.items())
        for each in (given.stamps, given.restored)
    )
    record = _StampRecord(begun_ns=given.begun_ns, files=files, restored=restored)
    write_atomically(directory / _RECORD, msgspec.msgpack.encode(record), durable=True)


def load(directory: Path, work: Path) -> AttemptInputs | None:
    """Return the saved inputs of an attempt by their paths below `work`; None if there is no readable record."""
    try:
        record = msgspec.msgpack.decode((directory / _RECORD).read_bytes(), type=_StampRecord)
    except (OSError, *codec.UNREADABLE):
        return None
    stamps, restored = (
        {work / os.fsdecode(path): known for path, known in each} for each in (record.files, record.restored)
    )
    return AttemptInputs(begun_ns=record.begun_ns, stamps=stamps, restored=restored)


def stamps(work: Path) -> dict[Path, Stamp]:
    """Return every file below `work`, with its stamp."""
    return {path: stamp(path.lstat()) for path in work.rglob("*") if not path.is_dir()}


def untouched(work: Path, given: dict[Path, Stamp]) -> set[Path]:
    """Return the unchanged inputs."""
    return {path for path, known in given.items() if _is(work, path, known)}


def modified(work: Path, given: dict[Path, Stamp]) -> list[str]:
    """Return the inputs that were changed or removed, by their paths in the workspace."""
    changed = (path.relative_to(work) for path, known in given.items() if not _is(work, path, known))
    return [os.fsencode(path).decode("utf-8", "backslashreplace") for path in changed]


def describe_modified(path: str) -> str:
    """Return the message of a notice about a changed input."""
    return f"{path} was changed by the run, so its inputs differ from the snapshot"


def remove(work: Path, given: dict[Path, Stamp]) -> None:
    """Remove unchanged inputs, which the store has, and folders that are then empty. Files of the script stay."""
    for path, known in given.items():
        if _is(work, path, known):
            with suppress(OSError):
                path.unlink()
    folders = {folder for path in given for folder in path.parents if folder.is_relative_to(work)}
    for folder in sorted(folders, reverse=True):
        with suppress(OSError):  # something is left in it
            folder.rmdir()


def _is(work: Path, path: Path, known: Stamp) -> bool:
    """Return True if an input is unchanged and in its own place, not behind a link that the script made of a folder."""
    try:
        return stamp(path.lstat()) == known and path.parent.resolve() == work.resolve() / path.parent.relative_to(work)
    except OSError:
        return False
