"""Expected bits of a replay, by the recorded determinism level and the hardware of this machine.

A level guarantees equal bits only on some hardware. Libraries do not count here: drift rates them.
"""

from collections.abc import Sequence

from m5ws.records.environment import Determinism
from m5ws.records.verdict import Change, Expectation, Hardware
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository

_KIND = ("platform", "cpu.model", "cpu.flags", "gpu.model")
_PART = ("cpu.count", "gpu.count")


def expected(determinism: Determinism, host: str | None, this_host: str, changes: Sequence[Change]) -> Expectation:
    """Return the expectation that follows from `determinism` on this hardware.

    `host` is the host of the original's first attempt, `this_host` the name of this host. `changes` is the drift
    between the two environments.
    """
    different = [change for change in changes if change.name in _KIND]
    hardware: Hardware = "other hardware" if different else "the same kind of hardware"
    if not different and host == this_host and not any(change.name in _PART for change in changes):
        hardware = "the same machine"
    grave = [change for change in different if change.rating != "cannot"]
    return Expectation(
        level=determinism.level,
        hardware=hardware,
        equal=determinism.level != "off" and not grave,
        different=tuple(change.name for change in different),
    )


def host(repo: Repository, run: str) -> str | None:
    """Return the host that began a run's first attempt, None if the ledger has none."""
    first = next(iter(ledger.attempts(repo, run)), None)
    started = ledger.started(repo, run, first) if first is not None else None
    return started.host if started is not None else None
