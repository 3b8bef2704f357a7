"""Checkpoint files outside of its work directory that an attempt changed, at the places that its launch names.

No attempt has a copy of them: a replay would replace the results of its original.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from m5ws.config.commands import arguments
from m5ws.errors import UsageError
from m5ws.records.ledger import Notice
from m5ws.records.run import LaunchSpec
from m5ws.runs.outputs import checkpoint_formats, outputs

OUTSIDE = "outputs-outside"
"""Kind of notice: one such place, which is the end of the message."""
_BEGIN = "outside of the work directory, the script changed checkpoint files in "
_MOST = 20_000
"""Number of files that are looked at in one place."""
_NAMED_BYTES = 2**20
_SHORT_OPTION = re.compile(r"-[A-Za-z]([/~].*)", re.DOTALL)


def notices(launch: LaunchSpec, work: Path, begun_ns: int) -> list[tuple[str, str]]:
    """Return a notice, by kind, of each place outside `work` with a checkpoint file that changed since the start.

    The places are named by arguments, by files that the command names, and by the run's variables. `begun_ns`:
    nanoseconds since the epoch.
    """
    return [(OUTSIDE, f"{_BEGIN}{place}") for place in _places(launch, work) if _has_changed(place, begun_ns)]


def refuse_overwriting(run: str, noted: Iterable[Notice]) -> None:
    """Raise UsageError if the notices of a run name such places: a replay would overwrite the run's own results."""
    messages = (notice.message for notice in noted if notice.kind == OUTSIDE)
    places = list(dict.fromkeys(message.removeprefix(_BEGIN) for message in messages))
    if places:
        raise UsageError(
            f"run {run} changed checkpoint files in {outputs.listed(places)}, outside of its work directory: a replay "
            "would overwrite them",
            hint="Let the script write below its current directory, to a folder of [run] outputs. If you have a copy "
            "of these files, or only another program changed them, `m5ws reproduce --overwrite` replays this run.",
        )


def _places(launch: LaunchSpec, work: Path) -> list[str]:
    """Return the existing places outside of the work directory that a launch names."""
    found: dict[str, None] = {}
    root = os.path.realpath(work)
    for word in map(os.path.expanduser, _words(launch, work)):
        if "\0" in word or not (os.path.isabs(word) or ".." in Path(word).parts):
            continue
        place = os.path.realpath(os.path.join(root, word))
        is_around = Path(root).is_relative_to(place)
        if not is_around and not Path(place).is_relative_to(root) and os.path.exists(place):
            found[place] = None
    return list(found)


def _words(launch: LaunchSpec, work: Path) -> Iterator[str]:
    """Yield the texts of a launch that may be paths."""

    def read(path: str) -> bytes | None:
        try:
            with (work / path).open("rb") as file:
                return file.read(_NAMED_BYTES)
        except OSError:
            return None

    yield from arguments.values(launch.command[1:])
    yield from arguments.parse(launch.command, read).parameters().values()
    yield from (match[1] for match in map(_SHORT_OPTION.fullmatch, launch.command[1:]) if match)
    yield from launch.environment.values()


def _has_changed(place: str, begun_ns: int) -> bool:
    """Return True if a checkpoint file, at or below a place, was changed since a time. Unreadable ones are left out."""
    for number, path in enumerate(_files(place)):
        if number >= _MOST:
            return False
        try:
            if os.lstat(path).st_ctime_ns >= begun_ns and checkpoint_formats.ending(Path(path)) is not None:
                return True
        except OSError:
            continue
    return False


def _files(place: str) -> Iterator[str]:
    if not os.path.isdir(place):
        yield place
    for folder, _, names in os.walk(place):
        yield from (os.path.join(folder, name) for name in names)
