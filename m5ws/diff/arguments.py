"""Differences between the commands of two runs, by the names of their arguments.

A file that both commands name by the same argument is compared by its keys.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from m5ws.config.commands.arguments import Arguments
from m5ws.environment.drift import different, rate
from m5ws.records.verdict import Change

PART = "argument"


def without_files(changes: Iterable[Change], old: Arguments, new: Arguments) -> Iterator[Change]:
    """Yield changes of code. A file whose keys are compared as arguments is not a second cause."""
    compared = {old.files[name].path for name in old.files.keys() & new.files.keys() if _keys(old, new, name)}
    for change in changes:
        if change.part == "code" and change.name in compared:
            yield msgspec.structs.replace(change, rating="cannot", detail="its keys are compared as arguments")
        else:
            yield change


def between(old: Arguments, new: Arguments) -> Iterator[Change]:
    """Yield the changed arguments, and the keys of changed files that they name."""
    for name in sorted(old.values.keys() | new.values.keys()):
        keys = _keys(old, new, name)
        yield from keys
        # The path of a file explains nothing beside its keys.
        if not keys and old.values.get(name) != new.values.get(name):
            yield rate(PART, name, old.values.get(name), new.values.get(name))


def _keys(old: Arguments, new: Arguments, name: str) -> tuple[Change, ...]:
    """Return the changed keys of the file that an argument names on both sides."""
    if name not in old.files or name not in new.files:
        return ()
    before, after = old.files[name], new.files[name]
    return tuple(changed_values(PART, before.prefix, before.keys, after.keys))


def changed_values(part: str, prefix: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    """Yield the differences of two mappings, by keys with a prefix."""
    for name, before, after in different(old, new):
        yield rate(part, f"{prefix}{name}", before, after)
