"""The admission of ranks: the first rank observes its environment, and all wait until their node admits them.

No line of the script runs in an environment that does not fit. A node that ends takes its ranks with it, so the wait
has no limit.
"""

import time
from pathlib import Path

import msgspec

from m5ws.environment.observe.machine import Machine
from m5ws.filesystem import write_atomically
from m5ws.records import codec
from m5ws.records.environment import Observed
from m5ws.records.launch import ADMITTED, OBSERVED, Admission, Context
from m5ws.training.runtime.facts import versions

_POLL_S = 0.005


def wait(context: Context, *, is_first: bool) -> Admission:
    """Return the admission of this rank. A rank that a launcher starts again has it already.

    The first rank of the node observes. Its number need not be 0.
    """
    folder = Path(context.spool_dir)
    path = folder / ADMITTED
    if is_first and not path.exists():
        write_atomically(folder / OBSERVED, codec.encode(_observe(context)))
    while not path.exists():
        time.sleep(_POLL_S)
    return codec.decode(path.read_bytes(), Admission, str(path))


def _observe(context: Context) -> Observed:
    """Return the environment of this process, as it is before any setting of the run is applied to torch."""
    orders = context.observing
    observed = Machine(
        root=Path(orders.root),
        copies=tuple(Path(copy) for copy in (context.work_dir, orders.copy) if copy),
        variable_names=orders.variables,
        read_torch=versions,
    ).observe({})
    if orders.rebuilt is None:
        return observed
    return msgspec.structs.replace(observed, facts=observed.facts | {"rebuilt": orders.rebuilt})
