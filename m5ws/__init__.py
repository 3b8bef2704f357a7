"""m5ws: training runs that can be checked. `session` and `seed` are all that a training script needs.

Importing this package loads no torch; the names below are looked up on first use.
"""

__version__ = "0.1.0"

# As typing's, without importing it: the program begins here, and what it imports first it waits for.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from m5ws.training.session import seed as seed
    from m5ws.training.session import session as session

_LAZY = {"session": "m5ws.training.session", "seed": "m5ws.training.session"}

__all__ = ["__version__", "seed", "session"]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'm5ws' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
