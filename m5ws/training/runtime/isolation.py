"""The run uses its snapshot and its environment, and nothing else.

No loaded module may come from the author's checkout. A materialised tree has no effect if an editable install, or
PYTHONPATH, imports the live one. A virtual environment has no effect if other programs come before its own.
"""

import os
import sys
import sysconfig
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

from m5ws.errors import M5Error
from m5ws.records.launch import Context

PACKAGES = frozenset({"site-packages", "dist-packages"})
_loaded: dict[str, str] = {}
"""File and name of each module loaded since `watch`, including those removed from `sys.modules`."""


class NotIsolated(M5Error):
    """The run executes code that is not in its snapshot."""

    hint = (
        "Remove the editable install or the PYTHONPATH entry that leads there, or move the package into the workspace."
    )


def activate() -> None:
    """Put this virtual environment's programs first on PATH, as activating it does; outside of one, do nothing.

    DeepSpeed compiles with the first `ninja` on PATH, and compiles again if another version was used before.
    """
    own, path = sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)
    if sys.prefix != sys.base_prefix and path.split(os.pathsep)[0] != own:
        os.environ["PATH"] = f"{own}{os.pathsep}{path}"


def watch() -> None:
    """Record each module that is loaded from a file from now on, also one that is never in `sys.modules`."""
    get_code = SourceFileLoader.get_code

    def recording(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        _loaded[loader.path] = fullname
        return get_code(loader, fullname)

    SourceFileLoader.get_code = recording  # type: ignore[method-assign, assignment]


def check(context: Context) -> None:
    """Raise NotIsolated if a loaded module lies in the author's checkout and is not the run's own copy.

    A virtual environment may lie in the checkout: packages installed in it are the environment, not the code.
    """
    author, work = Path(context.author_dir).resolve(), Path(context.work_dir).resolve()
    foreign = {name: path for name, path in _files() if _is_foreign(path, author, work)}
    if foreign:
        listed = ", ".join(f"{name} ({path})" for name, path in sorted(foreign.items())[:5])
        raise NotIsolated(f"{len(foreign)} module(s) were loaded from the author's checkout: {listed}")


def _files() -> list[tuple[str, str]]:
    """Return the name and file of every loaded module that has a file, except m5ws's own."""
    files = [(name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items())]
    files += [(name, file) for file, name in _loaded.items()]
    return [
        (name, file)
        for name, file in files
        if isinstance(file, str) and name.partition(".")[0] != "m5ws" and not file.startswith("<")
    ]


@cache
def _is_foreign(file: str, author: Path, work: Path) -> bool:
    # A link in site-packages that leads into the checkout is an editable install.
    path = os.path.join(_real_folder(os.path.dirname(file)), os.path.basename(file))
    if os.path.islink(path):
        path = os.path.realpath(path)
    if not path.startswith(str(author)):
        return False
    real = Path(path)
    if not real.is_relative_to(author) or real.is_relative_to(work):
        return False
    prefixes = (Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())
    if any(prefix.is_relative_to(author) and real.is_relative_to(prefix) for prefix in prefixes):
        return False
    return PACKAGES.isdisjoint(real.relative_to(author).parts)


@cache
def _real_folder(folder: str) -> str:
    """Return a folder with its links resolved, once for each of the few folders of thousands of modules."""
    return os.path.realpath(folder)
