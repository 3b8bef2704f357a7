"""Distributions that are installed from files of this machine: code of a run that no snapshot contains.

An editable install runs the current content of its folder. A copy of a local folder or wheel cannot be installed on
another machine. A snapshot refuses both, unless `[environment] allow_local` names them.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from m5ws.environment.interface import Observer
from m5ws.errors import M5Error
from m5ws.records.base import Digest
from m5ws.records.environment import Origin
from m5ws.snapshot.context import CaptureContext

_PASSED = "local"


class LocalInstalls(M5Error):
    """Distributions are installed from files outside the workspace. The message names all of them."""

    def __init__(self, origins: Mapping[str, Origin]) -> None:
        lines = (f"  {name}: {origin.kind} install from {origin.url}" for name, origin in origins.items())
        names = ", ".join(f'"{name}"' for name in origins)
        super().__init__("\n".join(("these distributions are installed from files outside the workspace:", *lines)))
        self.hint = (
            "Move their sources into the workspace, and have ranks import them from the snapshot: [run] "
            "environment.PYTHONPATH = 'libs/NAME'. Or install a release from an index or by commit (pip install "
            "'NAME @ git+https://…@COMMIT'). If no run imports them, allow them: "
            f"[environment] allow_local = [{names}] in m5ws.toml."
        )


def refuse(look: CaptureContext, observer: Observer, installation: Digest) -> None:
    """Raise LocalInstalls for local installs. The index remembers the `installation` (a digest) that passed."""
    wanted = look.settings.environment
    mark = look.repo.objects.digest(repr((installation, wanted.allow_local, wanted.image)).encode())
    if mark in look.index.marks(_PASSED):
        return
    if refused := local(observer.origins(wanted.image), wanted.allow_local):
        raise LocalInstalls(refused)
    look.index.remember_marks(_PASSED, {mark})


def local(origins: Mapping[str, Origin], allowed: Sequence[str]) -> dict[str, Origin]:
    """Return the distributions that are installed from outside the workspace, and match no allowed pattern."""
    patterns = [pattern.lower().replace("_", "-").replace(".", "-") for pattern in allowed]
    return {
        name: origin
        for name, origin in origins.items()
        if origin.local and not any(fnmatchcase(name, pattern) for pattern in patterns)
    }
