"""Pairs of files of two runs whose names contain a time, place, number or id: `outputs/2026-11-24/18-22-30/…`."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable

import msgspec

from m5ws.records.tree import Entry
from m5ws.reproduce.outputs import ignored, text_files
from m5ws.reproduce.outputs.surroundings import Surroundings, without_random_ids

_REPLACED = re.compile(r"TIME|ID|version_N\d*|HOST|RUN|$")


class Removed(msgspec.Struct, frozen=True):
    """Names of files that are not compared: those of `earlier` attempts, and those whose pair is unknown.

    `guessed` has the beginnings of paths of numbered folders in which pairs may be wrong.
    """

    earlier: list[str]
    unpaired: list[str]
    guessed: list[str]

    def is_guess(self, name: str) -> bool:
        """Return True if a file, or a value in it, is in one of the folders `guessed`. Its number may be left out."""
        folders = "|".join(map(re.escape, self.guessed))
        return bool(self.guessed) and re.match(rf"({folders})(\d+|N\d*)(?![\w.-])", name) is not None


def pair(old: dict[str, Entry], new: dict[str, Entry], places: tuple[Surroundings, Surroundings]) -> Removed:
    """Give each pair of files a common name. Remove the files that are not compared, and return their names.

    Each attempt of a resumed run leaves a folder with its own time, or with the next number (Lightning). Those of its
    last attempts are compared, with the files of earlier numbers that they lack. If one run has more files for another
    reason, the files keep their names. Random ids have no order: of several files whose names differ in these alone,
    those with equal contents are pairs.
    """
    attempts = places[0].attempts - places[1].attempts
    removed = Removed(earlier=[], unpaired=[], guessed=[])
    if attempts and places[0].numbered:
        sides = ((old, new), places) if attempts > 0 else ((new, old), (places[1], places[0]))
        _join_versions(*sides[0], removed, sides[1])
    groups = _grouped(old, new, places[0]), _grouped(new, old, places[1])
    for plain in sorted(groups[0].keys() & groups[1].keys() - old.keys() - new.keys()):
        before, after = groups[0][plain], groups[1][plain]
        if not (_has_order(before) and _has_order(after)):
            before, after = _with_equal_contents(old, new, (before, after), attempts, removed)
        longer, files = (before, old) if attempts > 0 else (after, new)
        shorter, others = (after, new) if attempts > 0 else (before, old)
        left_before = places[0 if attempts > 0 else 1].earlier
        whole = {others[name].digest for name in shorter}
        # First those that an attempt left unfinished, and another did again.
        for name in sorted(longer, key=lambda name: files[name].digest in whole) if attempts else ():
            if len(longer) > len(shorter) and (name, files[name].digest) in left_before:
                longer.remove(name)
                removed.earlier.append(name)
                del files[name]
        if len(before) == len(after):
            for number, (old_name, new_name) in enumerate(zip(before, after, strict=True), 1):
                shared = plain if len(before) == 1 else _REPLACED.sub(rf"\g<0> ({number})", plain, count=1)
                old[shared], new[shared] = old.pop(old_name), new.pop(new_name)
    return removed


def _has_order(names: list[str]) -> bool:
    """Return True if names differ in more than random ids."""
    return len(set(map(without_random_ids, names))) == len(names)


def _with_equal_contents(
    old: dict[str, Entry], new: dict[str, Entry], names: tuple[list[str], list[str]], attempts: int, removed: Removed
) -> tuple[list[str], list[str]]:
    """Return the names of pairs in equal order. Remove the other files if runs have equally many, or other attempts."""
    before, after = list[str](), list[str]()
    rest, others = list[str](), list(names[1])
    for name in names[0]:
        same = next((other for other in others if new[other].digest == old[name].digest), None)
        if same is None:
            rest.append(name)
        else:
            before.append(name)
            after.append(same)
            others.remove(same)
    if len(rest) == len(others) == 1:
        return [*before, *rest], [*after, *others]
    if attempts or len(rest) == len(others):
        # Each file of the run with fewer attempts has a pair: the rest is of earlier attempts.
        listed = removed.earlier if not (others if attempts > 0 else rest) else removed.unpaired
        listed += [*rest, *others]
        for name in rest:
            del old[name]
        for name in others:
            del new[name]
    return before, after


def _join_versions(
    resumed: dict[str, Entry], other: dict[str, Entry], removed: Removed, places: tuple[Surroundings, Surroundings]
) -> None:
    """Join the numbered folders of the attempts of a resumed run until it has as many as the other run.

    A file that an earlier attempt left counts as one of the next folder that stays. It is removed if a later attempt
    wrote it again, or if it is a checkpoint that the other run lacks. If each attempt has several folders, of ranks or
    of trainings, their pairs are guessed.
    """
    place = places[0]
    # A folder may have another time in its path on each side.
    theirs = _versions(other, places[1])
    others = {places[1].plain(folder): (folder, sorted(numbers, key=int)) for folder, numbers in theirs.items()}
    for folder, numbers in _versions(resumed, place).items():
        beside, known = others.get(place.plain(folder), (folder, []))
        if len(known) > 1:
            removed.guessed.extend((folder, place.plain(folder)))
        stay = sorted(numbers, key=int)[-len(known) :] if known else []
        for number in sorted(numbers.keys() - set(stay) if stay else (), key=int, reverse=True):
            for name in numbers[number]:
                if (name, resumed[name].digest) not in place.earlier:
                    continue
                inside = name.removeprefix(f"{folder}{number}")
                entry = resumed.pop(name)
                is_checkpoint = any(map(ignored.is_weights, name.split("/")))
                is_rotated = is_checkpoint and f"{beside}{known[0]}{inside}" not in other
                # Each attempt may have several folders, of loggers of different kinds.
                if is_rotated or any(f"{folder}{later}{inside}" in resumed for later in stay):
                    removed.earlier.append(name)
                else:
                    resumed[f"{folder}{stay[0]}{inside}"] = entry


def _versions(names: Iterable[str], place: Surroundings) -> dict[str, dict[str, list[str]]]:
    """Return the names in numbered folders, by the folder's path without its number, and by the number."""
    found = defaultdict[str, dict[str, list[str]]](lambda: defaultdict(list))
    for name in names:
        if numbered := place.numbered_folder(name):
            folder, number = numbered
            found[folder][number].append(name)
    return found


def _grouped(names: Iterable[str], others: Collection[str], place: Surroundings) -> dict[str, list[str]]:
    """Return names in order, grouped by their text without time and place.

    Those that the other run has too are pairs already, except in numbered folders: it gave its numbers to others.
    """
    own = [name for name in names if name not in others or place.numbered_folder(name)]
    groups = defaultdict[str, list[str]](list)
    for name in sorted(own, key=text_files.natural):
        if (plain := place.plain(name)) != name:
            groups[plain].append(name)
    return groups
