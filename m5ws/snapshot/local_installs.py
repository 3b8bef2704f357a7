"""Distributions that are installed from files of this machine: code of a run that no snapshot holds.

An editable install runs whatever lies in its folder at that moment; a copy of a local folder or wheel can be installed
nowhere else. Both are refused when a snapshot is taken, unless `[environment] allow_local` names them.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from m5ws.environment.interface import Observer
from m5ws.errors import M5Error
from m5ws.records.base import Digest
from m5ws.records.environment import Origin
from m5ws.snapshot.context import Look

_PASSED = "local"


class LocalInstalls(M5Error):
    """Distributions are installed from outside the workspace. All of them are named at once."""

    def __init__(self, found: Mapping[str, Origin]) -> None:
        lines = (f"  {name}: {origin.kind} install from {origin.url}" for name, origin in found.items())
        names = ", ".join(f'"{name}"' for name in found)
        super().__init__("\n".join(("these distributions are installed from files that no snapshot holds:", *lines)))
        self.hint = (
            "Move their sources into the workspace, and have ranks import them from the snapshot: [run] "
            "environment.PYTHONPATH = 'libs/NAME'. Or install a release from an index or by commit (pip install "
            "'NAME @ git+https://…@COMMIT'). If no run imports them, allow them: "
            f"[environment] allow_local = [{names}] in m5ws.toml."
        )


def refuse(look: Look, observer: Observer, installation: Digest) -> None:
    """Raise LocalInstalls, unless what is installed (`installation` changes with it) passed before."""
    wanted = look.settings.environment
    mark = look.repo.objects.digest(repr((installation, wanted.allow_local, wanted.image)).encode())
    if mark in look.index.marks(_PASSED):
        return
    if found := local(observer.origins(wanted.image), wanted.allow_local):
        raise LocalInstalls(found)
    look.index.remember_marks(_PASSED, {mark})


def local(origins: Mapping[str, Origin], allowed: Sequence[str]) -> dict[str, Origin]:
    """Return what is installed from outside the workspace, and is not allowed by a pattern of names."""
    patterns = [pattern.lower().replace("_", "-").replace(".", "-") for pattern in allowed]
    return {
        name: origin
        for name, origin in origins.items()
        if origin.local and not any(fnmatchcase(name, pattern) for pattern in patterns)
    }
