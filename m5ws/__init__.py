"""m5ws: training runs that can be checked. `session` and `seed` are all that a training script needs.

Importing this package loads no torch; the names below are looked up on first use.

Floors, from top to bottom; an import points down only (import-linter checks it):

    cli · workspace                  verbs; the one place that chooses implementations
    attest bisect projects           statements; the cause of a difference; init and demo
    reproduce · runs                 replay and verdict; start, supervise, resume
    diff checkpoints                 comparisons of snapshots, runs and checkpoints
    snapshot tracking                inputs of a run; MLflow
    environment                      observe, compare, rebuild
    training launch                  inside the ranks, the only place of torch; start of an attempt
    repository · store               typed content-addressed records; bytes under keys
    config · records · errors        m5ws.toml; every record, one noun a file
"""

__version__ = "0.1.0"

# As typing's, without importing it: the program begins here, and what it imports first it waits for.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from m5ws.training.loop.session import seed as seed
    from m5ws.training.loop.session import session as session

_LAZY = {"session": "m5ws.training.loop.session", "seed": "m5ws.training.loop.session"}

__all__ = ["__version__", "seed", "session"]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'm5ws' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
