"""Imports of the author's checkout, led to the copy of the same file in the run's work directory.

An editable install of the workspace's own package has the checkout on `sys.path`, or maps names to files there. Each
rank imports the snapshot's copy instead. A module without a copy stays where it is, and is refused when it is loaded.
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from m5ws.records.launch import Context
from m5ws.training.runtime import isolation


def prefer(context: Context) -> None:
    """Let this process and the Python processes that it starts import the run's own copies."""
    copies = [copy for entry in sys.path if entry and (copy := _copy(entry, context)) is not None]
    if copies:
        # Before all other folders but the script's.
        sys.path[1:1] = copies
        inherited = filter(None, [os.environ.get("PYTHONPATH")])
        os.environ["PYTHONPATH"] = os.pathsep.join([*copies, *inherited])
    sys.meta_path.insert(0, _Copies(context))


class _Copies:
    """Finds modules with the other finders, and replaces modules in the checkout by the run's own copies."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = self._found(name, path, target)
        if spec is None:
            return None
        if spec.submodule_search_locations is not None and spec.origin is None:
            # A namespace package.
            folders = [_copy(folder, self._context) or folder for folder in spec.submodule_search_locations]
            spec.submodule_search_locations = list(dict.fromkeys(folders))
            return spec
        copy = _copy(spec.origin, self._context) if spec.origin is not None and spec.has_location else None
        if copy is None:
            return spec
        package = None if spec.submodule_search_locations is None else [os.path.dirname(copy)]
        return importlib.util.spec_from_file_location(name, copy, submodule_search_locations=package)

    def _found(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in tuple(sys.meta_path):  # A finder may remove itself.
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None and (spec := find(name, path, target)) is not None:
                return spec  # type: ignore[no-any-return]
        return None


def _copy(path: str, context: Context) -> str | None:
    """Return the run's copy of a file or folder of the checkout; None if it is elsewhere, or has none."""
    if (checkout := isolation.checkout_of(path, context)) is None:
        return None
    place = os.path.relpath(isolation.real_path(path), checkout)
    copy = os.path.normpath(os.path.join(context.work_dir, place))
    return copy if os.path.exists(copy) else None
