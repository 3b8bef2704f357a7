"""The run uses its snapshot and its environment, and nothing else.

A module is refused when it is loaded from a file that no snapshot contains: from the author's checkout, or from a
distribution that is installed from other files of this machine. A module of the checkout with a copy in the snapshot is
imported from that copy (imported_copies.py).
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import metadata
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from urllib.parse import unquote, urlsplit

import msgspec

from m5ws.errors import M5Error
from m5ws.records.launch import Context, LocalInstall

PACKAGES = frozenset({"site-packages", "dist-packages"})
_limits: dict[str, None] = {}
"""Imports from distributions that are allowed although no snapshot contains them, in words."""


class NotIsolated(M5Error):
    """The run executes code that is not in its snapshot."""

    hint = (
        "Remove the editable install or the PYTHONPATH entry that leads there, or have the snapshot contain the file: "
        "git and [code] exclude must not ignore it."
    )


class _Unpinned(msgspec.Struct, frozen=True):
    """A local install, with its source folder if it is editable, else with the files of its modules."""

    install: LocalInstall
    places: tuple[str, ...]


def watch(context: Context, installs: Sequence[LocalInstall], note: Callable[[str], None]) -> None:
    """Check each module that is loaded from a file from now on, also a module that is never in `sys.modules`.

    `installs` has the distributions that no snapshot contains. Loading code that no snapshot contains raises
    NotIsolated. `note` is called with the name of each module.
    """
    unpinned = tuple(_Unpinned(install, _places(install)) for install in installs)
    get_code, create_module = SourceFileLoader.get_code, ExtensionFileLoader.create_module

    def loading(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        note(fullname)
        _refuse(fullname, loader.path, context, unpinned)
        return get_code(loader, fullname)

    def creating(loader: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
        note(spec.name)
        _refuse(spec.name, str(loader.path), context, unpinned)
        return create_module(loader, spec)

    SourceFileLoader.get_code = loading  # type: ignore[method-assign, assignment]
    ExtensionFileLoader.create_module = creating  # type: ignore[method-assign, assignment]


def checkout_of(file: str, context: Context) -> str | None:
    """Return the checkout that has a file: the author's, or the copy from which the environment was rebuilt.

    None for the run's own copy, and for an installed package.
    """
    path, work = real_path(file), real_folder(context.work_dir)
    folders = (real_folder(folder) for folder in (context.author_dir, context.observing.copy) if folder)
    around = next((folder for folder in folders if _is_below(path, folder)), None)
    return None if around is None or _is_below(path, work) or _is_installed(path, around) else around


def take_limits() -> Iterator[str]:
    """Yield the imports that limit the run's isolation, each once."""
    while _limits:
        yield next(iter(_limits))
        del _limits[next(iter(_limits))]


@cache
def real_path(file: str) -> str:
    """Return a path with its links resolved. A link in site-packages that leads elsewhere is an editable install."""
    path = os.path.join(real_folder(os.path.dirname(file)), os.path.basename(file))
    return os.path.realpath(path) if os.path.islink(path) else path


def _refuse(module: str, file: str, context: Context, unpinned: tuple[_Unpinned, ...]) -> None:
    """Raise NotIsolated if no snapshot contains a module's file. Record it if its distribution is allowed."""
    if module.partition(".")[0] == "m5ws":
        return
    if checkout_of(file, context) is not None:
        raise NotIsolated(f"{module} was imported from the author's checkout ({file}), and the snapshot has no copy")
    path = real_path(file)
    for one in unpinned:
        if any(_is_below(path, place) and not _is_installed(path, place) for place in one.places):
            _judge(module, path, one.install)


def _judge(module: str, path: str, install: LocalInstall) -> None:
    name, source = install.name, f"{install.kind} install from {install.url}"
    if install.allowed:
        _limits.setdefault(f"code of {name} ({source}) was imported, and the snapshot does not contain it")
        return
    folder = Path(path).parents[module.count(".") + (Path(path).stem == "__init__")]
    raise NotIsolated(
        f"{module} was imported from {name} ({source}), and the snapshot does not contain its code. To pin the code: "
        f'`ln -s {folder} {name}`, with [data] paths = ["{name}"] and [run] environment = '
        f'{{ PYTHONPATH = "{name}" }} in m5ws.toml. To accept this as a limit of the run: [environment] allow_local = '
        f'["{name}"]'
    )


def _places(install: LocalInstall) -> tuple[str, ...]:
    """Return the folder of an editable install, or the files that were copied from a local folder or wheel."""
    if install.kind == "editable":
        return (os.path.realpath(unquote(urlsplit(install.url).path)),)
    try:
        files = metadata.distribution(install.name).files or []
    except metadata.PackageNotFoundError:
        return ()
    return tuple(os.path.realpath(str(file.locate())) for file in files if file.suffix in (".py", ".so"))


def _is_installed(path: str, around: str) -> bool:
    """Return True if a path in the folder `around` belongs to an environment in that folder."""
    prefixes = (real_folder(sys.prefix), real_folder(sys.base_prefix))
    if any(_is_below(prefix, around) and _is_below(path, prefix) for prefix in prefixes):
        return True
    return not PACKAGES.isdisjoint(Path(path).relative_to(around).parts)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


@cache
def real_folder(folder: str) -> str:
    """Return a folder with its links resolved, once for each of the few folders of thousands of modules."""
    return os.path.realpath(folder)
