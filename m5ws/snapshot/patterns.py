"""Which paths a setting names: gitignore-style patterns, as https://git-scm.com/docs/gitignore has them.

Most settings are plain names; those are compared without the library that knows the rest.
"""

import os
from collections.abc import Callable, Sequence

Matcher = Callable[[bytes], bool]

_SPECIAL = frozenset("*?[\\!#")


def ignoring(patterns: Sequence[str]) -> Matcher:
    """Return what matches as a `.gitignore` in the workspace's root would: at any depth, unless a `/` anchors it."""
    return _compiled(patterns) if patterns else _nothing


def naming(patterns: Sequence[str]) -> Matcher:
    """Return what matches paths from the workspace's root on; a folder's pattern matches all below it.

    A path that is written out in full matches even where it holds a pattern's special characters.
    """
    literal = frozenset(os.fsencode(pattern.strip("/")) for pattern in patterns)
    folders = tuple(name + b"/" for name in literal)
    globs = [pattern for pattern in patterns if is_glob(pattern)]
    special = _compiled([f"/{pattern.lstrip('/')}" for pattern in globs]) if globs else _nothing
    return lambda path: path in literal or path.startswith(folders) or special(path)


def is_glob(pattern: str) -> bool:
    """Return whether a pattern has characters that stand for others."""
    return not _SPECIAL.isdisjoint(pattern)


def _compiled(patterns: Sequence[str]) -> Matcher:
    import pathspec

    spec = pathspec.GitIgnoreSpec.from_lines(patterns)
    return lambda path: spec.match_file(os.fsdecode(path))


def _nothing(_: bytes) -> bool:
    return False
