"""Distributions that are installed from files of this machine: code of a run that no snapshot contains.

An editable install runs the current content of its folder. A copy of a local folder or wheel cannot be installed on
another machine. A snapshot names both, and a rank that imports one fails, unless `[environment] allow_local` names it.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from m5ws.records.base import Digest
from m5ws.records.environment import Origin
from m5ws.snapshot.context import CaptureContext

_NAMED = "local"


def warnings(context: CaptureContext, installation: Digest) -> list[str]:
    """Return a warning for each local install. The index remembers the `installation` (a digest) that was named."""
    wanted = context.settings.environment
    mark = context.repo.objects.digest(repr((installation, wanted.allow_local, wanted.image)).encode())
    if mark in context.index.marks(_NAMED):
        return []
    named = local(context.observer.origins(wanted.image), wanted.allow_local)
    if not context.dry_run:
        context.index.remember_marks(_NAMED, {mark})
    return [
        f"{name} is an {origin.kind} install from {origin.url}, outside the workspace: a run that imports it fails"
        for name, origin in named.items()
    ]


def local(origins: Mapping[str, Origin], allowed: Sequence[str]) -> dict[str, Origin]:
    """Return the distributions that are installed from outside the workspace, and match no allowed pattern."""
    patterns = [pattern.lower().replace("_", "-").replace(".", "-") for pattern in allowed]
    return {
        name: origin
        for name, origin in origins.items()
        if origin.local and not any(fnmatchcase(name, pattern) for pattern in patterns)
    }
