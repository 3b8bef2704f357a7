"""Paths that match a setting: gitignore-style patterns, by the rules of https://git-scm.com/docs/gitignore.

Most settings are plain names. They are compared as text, and the pathspec library is imported only for patterns.
"""

import os
from collections.abc import Callable, Sequence

Matcher = Callable[[bytes], bool]

_SPECIAL = frozenset("*?[\\!#")


def ignoring(patterns: Sequence[str]) -> Matcher:
    """Return a matcher with the rules of a `.gitignore` in the root: at any depth, unless a `/` anchors a pattern."""
    import pathspec

    spec = pathspec.GitIgnoreSpec.from_lines(patterns)
    return lambda path: spec.match_file(os.fsdecode(path))


def naming(patterns: Sequence[str]) -> Matcher:
    """Return a matcher of paths from the workspace's root on. The pattern of a folder matches all files below it.

    An exact path matches even if it contains special characters of patterns.
    """
    literal = frozenset(os.fsencode(pattern.strip("/")) for pattern in patterns)
    folders = tuple(name + b"/" for name in literal)
    globs = [pattern for pattern in patterns if is_glob(pattern)]
    special = ignoring([f"/{pattern.lstrip('/')}" for pattern in globs]) if globs else literal.__contains__
    return lambda path: path in literal or path.startswith(folders) or special(path)


def is_glob(pattern: str) -> bool:
    """Return True if a pattern has special characters."""
    return not _SPECIAL.isdisjoint(pattern)
