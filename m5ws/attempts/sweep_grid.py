"""The grid of a sweep, from the words of `m5ws sweep`: keys, each with its values. Pure: no store is read.

    sweep = [+] [FILE:] KEY "=" values        values = BEGIN ":" END [":" STEP] | value { "," value }

A range has whole numbers, from BEGIN up to END, which is left out. A comma inside quotes or brackets is part of a
value.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from m5ws.errors import UsageError
from m5ws.records.run import Axis

OPTION = "m5ws sweep"
"""The command, for messages about a key and its values."""
MOST_RUNS = 1000
_NAME_CHARACTERS = 80
_RANGE = re.compile(r"(-?\d+):(-?\d+)(?::(-?\d+))?")
_HINT = "Write lr=1e-4,3e-4 for values, or seed=0:4 for 0, 1, 2, 3. A command goes after `--`."
_PAIRS = {"[": "]", "{": "}", '"': '"', "'": "'"}


def parse(texts: Sequence[str]) -> tuple[Axis, ...]:
    """Return the keys and values of words KEY=VALUES. Raises UsageError for an invalid word, and for too many runs."""
    axes = tuple(map(_axis, texts))
    _refuse_repeated([name_key(axis.key) for axis in axes])
    count = math.prod(len(axis.values) for axis in axes)
    if count > MOST_RUNS:
        sizes = " × ".join(f"{len(axis.values):,} of {name_key(axis.key)}" for axis in axes)
        raise UsageError(
            f"the sweep has {count:,} runs ({sizes}), and at most {MOST_RUNS:,} are allowed",
            hint="Give fewer values, or split the sweep.",
        )
    return axes


def combinations(axes: Sequence[Axis]) -> Iterator[dict[str, str]]:
    """Yield the values of each run by key, in the order of `Sweep.position`."""
    for values in itertools.product(*(axis.values for axis in axes)):
        yield {axis.key: value for axis, value in zip(axes, values, strict=True)}


def name_key(key: str) -> str:
    """Return a key of the grid without its `+` and its file."""
    return key.removeprefix("+").rpartition(":")[2]


def name_run(sweep: str | None, values: Mapping[str, str]) -> str:
    """Return the name of a run: the name of its sweep, and its values."""
    words = [sweep] if sweep else []
    name = " ".join([*words, *(f"{name_key(key)}={value}" for key, value in values.items())])
    return name if len(name) <= _NAME_CHARACTERS else f"{name[: _NAME_CHARACTERS - 1]}…"


def _axis(text: str) -> Axis:
    key, equals, listed = text.partition("=")
    key = key.strip()
    if not equals or not name_key(key):
        raise UsageError(f"{OPTION} {text!r} is not of the form KEY=VALUES", hint=_HINT)
    whole = _RANGE.fullmatch(listed.strip())
    values = _range(text, *whole.groups()) if whole else tuple(part.strip() for part in _split(listed))
    if "" in values:
        raise UsageError(f"{OPTION} {text!r} has an empty value", hint=_HINT)
    if repeated := next((value for value in values if values.count(value) > 1), None):
        raise UsageError(f"{OPTION} {text!r} has the value {repeated} twice")
    return Axis(key=key, values=values)


def _range(text: str, begin: str, end: str, step: str | None) -> tuple[str, ...]:
    stride = int(step or 1)
    numbers = range(int(begin), int(end), stride) if stride else range(0)
    if not numbers:
        raise UsageError(f"{OPTION} {text!r} is an empty range: the end is left out", hint=_HINT)
    # Not longer, so that a typing error does not fill the memory.
    return tuple(map(str, numbers[: MOST_RUNS + 1]))


def _split(listed: str) -> Iterator[str]:
    """Yield the parts of a text between its commas, without commas inside quotes or brackets."""
    begin, closing = 0, list[str]()
    for position, character in enumerate(listed):
        if closing and character == closing[-1]:
            closing.pop()
        elif character in _PAIRS and (not closing or closing[-1] not in "\"'"):
            closing.append(_PAIRS[character])
        elif character == "," and not closing:
            yield listed[begin:position]
            begin = position + 1
    yield listed[begin:]


def _refuse_repeated(names: Sequence[str]) -> None:
    """Raise UsageError if two keys change the same value."""
    for first, second in itertools.combinations(names, 2):
        if first == second or first.startswith(f"{second}.") or second.startswith(f"{first}."):
            raise UsageError(f"{OPTION} has {first} and {second}, which change the same value")
