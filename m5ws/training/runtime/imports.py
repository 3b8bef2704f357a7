"""Which installed modules and libraries this rank and its forked workers have loaded.

A difference in what no rank loaded changes nothing, so each is named by its place in the folders that imports search,
as `Observed.provides` names what distributions bring: `numpy`, `google/auth`, `nvidia/cudnn`.
"""

import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from m5ws.training.runtime import facts, isolation

_NOT_INSTALLED = frozenset({*sys.stdlib_module_names, "__main__", "__mp_main__"})


class Imports:
    """What a rank has loaded; `workers` is a file in which its forks note what they import."""

    def __init__(self, workers: Path | None = None) -> None:
        self._workers = workers
        self._told: set[str] = set()
        self._libraries: facts.Facts = {}

    def watch(self) -> None:
        """Have processes that are forked off note what they import first, as the workers of a loader do."""
        if self._workers is not None:
            sys.meta_path.insert(0, _Forks(self._workers))

    def new(self) -> tuple[tuple[str, ...], facts.Facts]:
        """Return places that were not returned before, and the native libraries if they are others than before."""
        places = {*_modules(), *_mapped(), *self._of_workers()} - self._told
        self._told |= places
        libraries = facts.loaded()
        changed = libraries != self._libraries
        self._libraries = libraries
        return tuple(sorted(places)), libraries if changed else {}

    def _of_workers(self) -> set[str]:
        try:
            return set(self._workers.read_text().split()) if self._workers is not None else set()
        except OSError:
            return set()


class _Forks:
    """Finds no module: imports ask it first, and in a fork it notes the name."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._pid = os.getpid()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        place = name.replace(".", "/")
        if os.getpid() == self._pid or place.count("/") > 1 or place.partition("/")[0] in _NOT_INSTALLED:
            return
        with suppress(OSError), self._file.open("a") as file:
            file.write(f"{place}\n")


def _modules() -> Iterator[str]:
    """Yield the places of loaded modules that the standard library does not have."""
    for name in list(sys.modules):
        top, _, below = name.partition(".")
        if top in _NOT_INSTALLED:
            continue
        if not below:
            yield top
        elif _is_shared(top):
            yield f"{top}/{below.partition('.')[0]}"


def _is_shared(top: str) -> bool:
    """Return True if a folder may be several distributions': it has no code of its own, or was not imported."""
    return getattr(sys.modules.get(top), "__file__", None) is None


def _mapped() -> Iterator[str]:
    """Yield the places of loaded libraries that distributions may have brought, but for those of imported modules."""
    folders = [folder for folder in sys.path if os.path.basename(folder) in isolation.PACKAGES]
    beside = {os.path.normpath(f"{folder}/../../..") for folder in folders}
    for path in {line.split(maxsplit=5)[5] for line in facts.maps() if line.count("/") and ".so" in line}:
        for folder in folders:
            if path.startswith(f"{folder}/"):
                top, _, below = path.removeprefix(f"{folder}/").partition("/")
                if below and _is_shared(top):
                    yield f"{top}/{below.partition('/')[0]}"
                elif not below:
                    yield inspect.getmodulename(top) or top
        for folder in beside:
            if path.startswith(f"{folder}/lib/") and not path.startswith(tuple(folders)):
                yield path.removeprefix(folder)
