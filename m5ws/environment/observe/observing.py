"""`python -m m5ws.environment.observe.observing ORDERS`: what an interpreter and its machine are, as one JSON object.

For interpreters other than the one that asks, in environments and containers. ORDERS is JSON: what `Machine` takes.
"""

import sys
from pathlib import Path

import msgspec

from m5ws.environment.observe.machine import Machine


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of `Machine`, as text."""

    root: str
    copied: str | None = None
    variable_names: tuple[str, ...] = ()
    cache: str | None = None


def main(orders: Orders) -> bytes:
    """Return the observed environment, with the variables that this process has."""
    machine = Machine(
        root=Path(orders.root),
        copied=Path(orders.copied) if orders.copied else None,
        variable_names=orders.variable_names,
        cache=Path(orders.cache) if orders.cache else None,
    )
    return msgspec.json.encode(machine.observe({}))


if __name__ == "__main__":
    sys.stdout.buffer.write(main(msgspec.json.decode(sys.argv[1], type=Orders)) + b"\n")
