"""Pairs of files of two runs whose names contain a time, a place or a number: `outputs/2026-11-24/18-22-30/…`."""

from collections import defaultdict
from collections.abc import Iterable

from m5ws.records.tree import Entry
from m5ws.reproduce.outputs import text_files
from m5ws.reproduce.outputs.surroundings import VERSION, Surroundings


def pair(old: dict[str, Entry], new: dict[str, Entry], places: tuple[Surroundings, Surroundings]) -> list[str]:
    """Give each pair of files a common name. Remove and return the files of earlier attempts.

    Each attempt of a resumed run leaves a folder with its own time, or with the next number (Lightning), and those of
    its last attempts are compared. If one run has more files for another reason, the files keep their names.
    """
    attempts = places[0].attempts - places[1].attempts
    left = _leave_earlier_versions(*((old, new) if attempts > 0 else (new, old))) if attempts else []
    groups = _grouped(old.keys() - new.keys(), places[0]), _grouped(new.keys() - old.keys(), places[1])
    for plain in sorted(groups[0].keys() & groups[1].keys() - old.keys() - new.keys()):
        before, after = groups[0][plain], groups[1][plain]
        longer, files = (before, old) if attempts > 0 else (after, new)
        while attempts and len(longer) > min(len(before), len(after)):
            left.append(longer.pop(0))
            del files[left[-1]]
        if len(before) == len(after):
            for number, (old_name, new_name) in enumerate(zip(before, after, strict=True), 1):
                shared = plain if len(before) == 1 else f"{plain} ({number})"
                old[shared], new[shared] = old.pop(old_name), new.pop(new_name)
    return left


def _leave_earlier_versions(resumed: dict[str, Entry], other: dict[str, Entry]) -> list[str]:
    """Remove and return the files of earlier attempts of a resumed run in numbered folders.

    As many folders stay as the other run has.
    """
    counts = {folder: len(numbers) for folder, numbers in _versions(other).items()}
    left = list[str]()
    for folder, numbers in _versions(resumed).items():
        earlier = sorted(numbers)[: -counts[folder]] if folder in counts else []
        left += [name for number in earlier for name in numbers[number]]
    for name in left:
        del resumed[name]
    return left


def _versions(names: Iterable[str]) -> dict[str, dict[int, list[str]]]:
    """Return the names in numbered folders, by the folder's path without its number, and by the number."""
    found = defaultdict[str, dict[int, list[str]]](lambda: defaultdict(list))
    for name in names:
        if match := VERSION.search(name):
            found[name[: match.end(1)]][int(match[2])].append(name)
    return found


def _grouped(names: Iterable[str], place: Surroundings) -> dict[str, list[str]]:
    """Return names in order, grouped by their text without time and place."""
    groups = defaultdict[str, list[str]](list)
    for name in sorted(names, key=text_files.natural):
        if (plain := place.plain(name)) != name:
            groups[plain].append(name)
    return groups
