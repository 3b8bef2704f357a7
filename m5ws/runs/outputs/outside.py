"""Files outside of its work directory that an attempt changed, at the places that its command names.

No attempt has a copy of them: a replay would replace the results of its original.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from m5ws.config.commands import arguments
from m5ws.errors import UsageError
from m5ws.records.ledger import Notice
from m5ws.runs.outputs import outputs

OUTSIDE = "outputs-outside"
"""Kind of notice: one such place, which is the end of the message."""
_BEGIN = "outside of the work directory, the script changed files in "
_MOST = 20_000
"""Number of files that are looked at in one place."""


def notices(command: Sequence[str], work: Path, begun_ns: int) -> list[tuple[str, str]]:
    """Return a notice, by kind, of each place outside `work` with a file that changed since the start `begun_ns`.

    `command` is the script and its arguments. `begun_ns`: nanoseconds since the epoch.
    """
    return [(OUTSIDE, f"{_BEGIN}{place}") for place in _places(command, work) if _has_changed(place, begun_ns)]


def refuse_overwriting(run: str, noted: Iterable[Notice]) -> None:
    """Raise UsageError if the notices of a run name such places: a replay would overwrite the run's own results."""
    messages = (notice.message for notice in noted if notice.kind == OUTSIDE)
    places = list(dict.fromkeys(message.removeprefix(_BEGIN) for message in messages))
    if places:
        raise UsageError(
            f"run {run} wrote to {outputs.listed(places)}, outside of its work directory: a replay would overwrite it",
            hint="Let the script write below its current directory, to a folder of [run] outputs. If you have a copy "
            "of these files, `m5ws reproduce --overwrite` replays this run.",
        )


def _places(command: Sequence[str], work: Path) -> list[str]:
    """Return the existing places outside of the work directory that the arguments name."""
    found: dict[str, None] = {}
    root = os.path.realpath(work)
    for word in arguments.values(command[1:]):
        place = os.path.realpath(os.path.join(root, os.path.expanduser(word)))
        if os.path.isabs(os.path.expanduser(word)) or ".." in Path(word).parts:
            is_around = Path(root).is_relative_to(place)
            if not is_around and not Path(place).is_relative_to(root) and os.path.exists(place):
                found[place] = None
    return list(found)


def _has_changed(place: str, begun_ns: int) -> bool:
    """Return True if a file, or one below a folder, was made or changed since a time. Unreadable ones are left out."""
    for number, path in enumerate(_files(place)):
        if number >= _MOST:
            return False
        try:
            if os.lstat(path).st_ctime_ns >= begun_ns:
                return True
        except OSError:
            continue
    return False


def _files(place: str) -> Iterator[str]:
    if not os.path.isdir(place):
        yield place
    for folder, _, names in os.walk(place):
        yield from (os.path.join(folder, name) for name in names)
