"""The installed modules and libraries that this rank and its forked workers have loaded.

A difference in a package that no rank loaded changes nothing. Each module is named by its path in the import folders,
as `Observed.provides` names the content of distributions: `numpy`, `google/auth`, `nvidia/cudnn`.
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
    """The modules that a rank has loaded. Forked processes, such as a loader's workers, append theirs to a file."""

    def __init__(self, workers: Path | None = None) -> None:
        self._workers = workers
        self._pid = os.getpid()
        self._returned: set[str] = set()
        self._libraries: facts.Facts = {}

    def note(self, name: str) -> None:
        """Record a module that is being loaded, if this process is a fork of the rank."""
        place = name.replace(".", "/")
        if os.getpid() == self._pid or self._workers is None or place.count("/") > 1:
            return
        if place.partition("/")[0] not in _NOT_INSTALLED:
            with suppress(OSError), self._workers.open("a") as file:
                file.write(f"{place}\n")

    def new(self) -> tuple[tuple[str, ...], facts.Facts]:
        """Return paths that were not returned before, and the native libraries if they have changed."""
        mapped = facts.mapped()
        places = {*_modules(), *_mapped(mapped), *self._of_workers()} - self._returned
        self._returned |= places
        libraries = facts.loaded(mapped)
        changed = libraries != self._libraries
        self._libraries = libraries
        return tuple(sorted(places)), libraries if changed else {}

    def _of_workers(self) -> set[str]:
        try:
            return set(self._workers.read_text().split()) if self._workers is not None else set()
        except OSError:
            return set()


def _modules() -> Iterator[str]:
    """Yield the paths of loaded modules that are not in the standard library."""
    for name in list(sys.modules):
        top, _, below = name.partition(".")
        if top in _NOT_INSTALLED:
            continue
        if not below:
            yield top
        elif _is_shared(top):
            yield f"{top}/{below.partition('.')[0]}"


def _is_shared(top: str) -> bool:
    """Return True if several distributions may share a folder: it has no code of its own, or was not imported."""
    return getattr(sys.modules.get(top), "__file__", None) is None


def _mapped(libraries: frozenset[str]) -> Iterator[str]:
    """Yield the paths of loaded libraries of distributions, except the libraries of imported modules."""
    folders = [folder for folder in sys.path if os.path.basename(folder) in isolation.PACKAGES]
    beside = {os.path.normpath(f"{folder}/../../..") for folder in folders}
    for path in libraries:
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
