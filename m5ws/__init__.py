"""m5ws: training runs that can be checked. A training script needs only `session` and `seed`.
A script whose framework owns the loop uses one of `adapters`. A script without a session may state by `resumed_at`
where it continues.

`Workspace` and `Run` are for notebooks and scripts that read runs (docs/reference/python.md). Importing this package
imports none of them: each name is imported on first use.

Layers, from top to bottom. An import points down only (import-linter checks it):

    cli · library · workspace        verbs; the Python interface; the one place that chooses implementations
    attest bisect doctor projects reports
                                     statements; the cause of a difference; checks; init; comparisons for people
    reproduce                        replay and verdict
    attempts · agent                 write side of a run: plan, begin, lead, end; one node: launch, deliver, stop
    runs · outputs · work            read side: state, history, lists; output files; work directories
    diff checkpoints                 comparisons of snapshots, runs and checkpoints
    snapshot tracking                inputs of a run; MLflow
    data                             pinned data sets, the order of their samples, the loader
    containers                       engines, and launches in a pinned image
    environment                      observe, compare, rebuild
    training launch                  inside the ranks, the only place of torch; start of an attempt
    repository · store               typed content-addressed records; bytes under keys
    config · wording                 m5ws.toml; the sentence of each record
    records · errors                 every record, one noun a file
    pages                            HTML from templates, and charts
"""

from m5ws.version import __version__ as __version__

# Not imported from typing, because every import here delays the start of the program.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from m5ws.library.run import Run as Run
    from m5ws.library.workspace import Workspace as Workspace
    from m5ws.training import adapters as adapters
    from m5ws.training.observation.watch import resumed_at as resumed_at
    from m5ws.training.session.session import seed as seed
    from m5ws.training.session.session import session as session

_LAZY = {
    "Run": "m5ws.library.run",
    "Workspace": "m5ws.library.workspace",
    "adapters": "m5ws.training",
    "resumed_at": "m5ws.training.observation.watch",
    "seed": "m5ws.training.session.session",
    "session": "m5ws.training.session.session",
}

__all__ = ["Run", "Workspace", "__version__", "adapters", "resumed_at", "seed", "session"]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'm5ws' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_LAZY[name])
    return import_module(f"{_LAZY[name]}.{name}") if name == "adapters" else getattr(module, name)
