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
    """Remove and return the files of earlier attempts of a resumed run in numbered folders, if the other has none."""
    versions = {name: (name[: found.end(1)], int(found[2])) for name in resumed if (found := VERSION.search(name))}
    last = dict[str, int]()
    for folder, number in versions.values():
        last[folder] = max(last.get(folder, 0), number)
    left = [name for name, (folder, number) in versions.items() if number < last[folder] and name not in other]
    for name in left:
        del resumed[name]
    return left


def _grouped(names: Iterable[str], place: Surroundings) -> dict[str, list[str]]:
    """Return names in order, grouped by their text without time and place."""
    groups = defaultdict[str, list[str]](list)
    for name in sorted(names, key=text_files.natural):
        if (plain := place.plain(name)) != name:
            groups[plain].append(name)
    return groups
