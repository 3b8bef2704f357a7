"""The numbered folders that loggers of Lightning make: one in each attempt, or one for each of several trainings."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from m5ws.reproduce.outputs.surroundings import Surroundings

_OF_LOGGER = re.compile(
    r"((?:.*/)?version_)(\d+)/(?:hparams\.yaml|metrics\.csv|checkpoints/.*|events\.out\.tfevents\..*)", re.DOTALL
)
"""A file in the folder that a logger of Lightning makes for an attempt, with a number."""


def find(
    sides: tuple[Iterable[str], Iterable[str]], places: tuple[Surroundings, Surroundings]
) -> tuple[set[str], tuple[Surroundings, Surroundings]]:
    """Return the numbered folders of two runs, also without their times, and places with those that attempts numbered.

    With the same numbers on both sides, none did; nor if the run with fewer attempts has no number as low as the
    resumed one's first: it lacks a folder that one attempt made.
    """
    every = [_of_loggers(side) for side in sides]
    resumed = 0 if places[0].attempts > places[1].attempts else 1
    folders = sorted({*every[0], *every[1]})
    # A folder may have another time in its path on each side.
    alike = [
        {place.plain(folder): numbers for folder, numbers in sorted(side.items())}
        for side, place in zip(every, places, strict=True)
    ]
    numbered: tuple[dict[str, dict[str, str]], ...] = ({}, {})
    for folder in folders:
        own = [
            sorted(every[side].get(folder) or alike[side].get(places[1 - side].plain(folder)) or set[str](), key=int)
            for side in (0, 1)
        ]
        few, many = own[1 - resumed], own[resumed]
        if few != many and (not few or not many or int(few[0]) <= int(many[0])):
            for labels, numbers in zip(numbered, own, strict=True):
                labels[folder] = _labels(numbers, {*few, *many}, len(few))
    replaced = [msgspec.structs.replace(place, numbered=one) for place, one in zip(places, numbered, strict=True)]
    plain = {place.plain(folder) for place in places for folder in folders}
    return {*folders, *plain}, (replaced[0], replaced[1])


def _of_loggers(names: Iterable[str]) -> dict[str, set[str]]:
    """Return the numbered folders in which loggers of Lightning write: the begin of their paths, with the numbers."""
    found = defaultdict[str, set[str]](set)
    for match in map(_OF_LOGGER.fullmatch, names):
        if match:
            found[match[1]].add(match[2])
    return found


def _labels(own: Sequence[str], every: Iterable[str], count: int) -> dict[str, str]:
    """Return a text for each number: the same one for the last `count` of both runs, in their order.

    Any other number has that of the first of these.
    """
    first = max(0, len(own) - count)
    positions = {number: max(0, position - first) for position, number in enumerate(own)}
    return {number: "N" if count < 2 else f"N{positions.get(number, 0) + 1}" for number in every}
