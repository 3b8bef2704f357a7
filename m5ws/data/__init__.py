"""Data sets as a training reads them: pinned files, the order of their samples, and a loader.

Importing this package imports neither torch nor NumPy, so that commands can read orders.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from m5ws.data.loader import Loader as Loader
    from m5ws.data.source import Source as Source

_LAZY = {"Loader": "m5ws.data.loader", "Source": "m5ws.data.source"}

__all__ = ["Loader", "Source"]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'm5ws.data' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
