"""Calls of a function right after the first import of a module, which the script makes or not."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], None]


def change(name: str, function: Change) -> None:
    """Call `function` with the module `name` when it has been imported."""
    sys.meta_path.insert(0, _Finder(name, function))


class _Finder:
    """Finds one module, once, with the other finders."""

    def __init__(self, name: str, function: Change) -> None:
        self._name = name
        self._function = function

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._function)
        return spec


class _Loader(Loader):
    """Loads a module as another loader does, and calls the function then."""

    def __init__(self, loader: Any, function: Change) -> None:
        self._loader = loader
        self._function = function

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._function(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
