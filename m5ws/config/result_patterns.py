"""Patterns of `[run] results`: the results that a verdict judges because the user names them.

A pattern is `glob` (a file, by its bytes), `glob:key` (a value in JSON or YAML, or a column of CSV) or `metric:NAME` (a
logged metric, all its points). `*` in a glob matches slashes too.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

import msgspec

KEYED = (".json", ".jsonl", ".ndjson", ".yaml", ".yml", ".csv", ".tsv")
"""Ends of the names of files that are read by keys or columns."""
_METRIC = "metric:"
_WILD = frozenset("*?[")


class ResultPattern(msgspec.Struct, frozen=True, kw_only=True):
    """One pattern: a metric's name, or a glob of files with an optional key."""

    text: str
    glob: str = ""
    key: str | None = None
    metric: str | None = None

    def find(self, names: Iterable[str]) -> list[str]:
        """Return the names of files that match, sorted."""
        globs = (self.glob, self.glob.removeprefix("**/"))
        return sorted(name for name in names if any(fnmatchcase(name, glob) for glob in globs))


def parse(text: str) -> ResultPattern:
    """Return the pattern in a text. Raises ValueError with the fault."""
    if text.startswith(_METRIC):
        name = text.removeprefix(_METRIC)
        if not name:
            raise ValueError("names no metric: write `metric:NAME`")
        return ResultPattern(text=text, metric=name)
    glob, colon, key = text.rpartition(":") if ":" in text else (text, "", "")
    path = PurePosixPath(glob)
    if not glob or path.is_absolute() or ".." in path.parts or glob.startswith("~"):
        raise ValueError("is not a path inside the workspace")
    if colon and not key:
        raise ValueError("has no key after the colon: write `file:key`")
    if colon and not _WILD.intersection(path.name) and not path.name.endswith(KEYED):
        raise ValueError(f"has a key, and only {', '.join(KEYED)} are read by keys: name the file alone")
    return ResultPattern(text=text, glob=str(path), key=key or None)


def describe_fault(texts: Iterable[str]) -> str | None:
    """Return the fault of the first pattern that is none, in words; None if all are patterns."""
    for text in texts:
        try:
            parse(text)
        except ValueError as error:
            return f"holds {text!r}, which {error}"
    return None
