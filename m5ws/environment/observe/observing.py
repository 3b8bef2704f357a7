"""`python -m m5ws.environment.observe.observing REQUEST`: print the observed environment as one JSON object.

It runs in rebuilt environments, under their own interpreter. REQUEST is an `ObserveRequest` as JSON.
"""

import sys
from pathlib import Path

import msgspec

from m5ws.environment.observe.machine import Machine


class ObserveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of `Machine`, as text."""

    root: str
    copied: str | None = None
    variable_names: tuple[str, ...] = ()
    cache: str | None = None


def main(request: ObserveRequest) -> bytes:
    """Return the observed environment as JSON, with the variables of this process."""
    machine = Machine(
        root=Path(request.root),
        copied=Path(request.copied) if request.copied else None,
        variable_names=request.variable_names,
        cache=Path(request.cache) if request.cache else None,
    )
    return msgspec.json.encode(machine.observe({}))


if __name__ == "__main__":
    sys.stdout.buffer.write(main(msgspec.json.decode(sys.argv[1], type=ObserveRequest)) + b"\n")
