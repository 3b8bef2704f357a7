"""What may be expected of a replay's bits: the recorded determinism level, held against the hardware that is there.

A level promises equal bits on some hardware and on no other. Libraries are another matter: drift rates them.
"""

from collections.abc import Sequence

from m5ws.records import portable
from m5ws.records.environment import Determinism
from m5ws.records.ledger import AttemptStarted
from m5ws.records.verdict import Change, Expectation, Hardware
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.ledger import LAUNCHER
from m5ws.repository.repository import Repository

_KIND = ("platform", "cpu.model", "cpu.flags", "gpu.model")
_PART = ("cpu.count", "gpu.count")
_PROMISES = {
    "portable": portable.PROMISE,
    "strict": "equal bits on the same machine and the same kind of hardware, and none on other hardware",
    "warn": "equal bits on the same machine and the same kind of hardware, unless torch warned of an operation",
    "off": "nothing: operations need not be deterministic, even on the same machine",
}


def expected(determinism: Determinism, host: str | None, here: str, changes: Sequence[Change]) -> Expectation:
    """Return what `determinism` promises on this hardware.

    `host` is where the original's first attempt ran and `here` this host's name; `changes` is the drift between the
    two environments.
    """
    different = [change for change in changes if change.name in _KIND]
    hardware: Hardware = "other hardware" if different else "the same kind of hardware"
    if not different and host == here and not any(change.name in _PART for change in changes):
        hardware = "the same machine"
    grave = [change for change in different if change.rating != "cannot"]
    equal = determinism.level != "off" and not grave
    named = f" ({', '.join(change.name for change in different)})" if different else ""
    doubt = ", unless torch warned of an operation" if determinism.level == "warn" else ""
    promise = f"equal bits there{doubt}" if equal else _PROMISES[determinism.level]
    return Expectation(
        level=determinism.level,
        hardware=hardware,
        equal=equal,
        why=f"{hardware}{named}; determinism level {determinism.level} promises {promise}",
    )


def host(repo: Repository, run: str) -> str | None:
    """Return the host that launched a run's first attempt, None if it recorded none."""
    first = next(iter(ledger.attempts(repo, run)), None)
    if first is None:
        return None
    events = ledger.events(repo, run, first, LAUNCHER)
    return next((event.host for event in events if isinstance(event, AttemptStarted)), None)
