"""Runs whose nodes died without a word: no new batch of the ledger for a while, by the clock of the store."""

import msgspec

from m5ws.records.failure import EndReason
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository
from m5ws.runs import state


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run, seen from outside. `silent_s`: the age of the newest batch of a run that is running.

    `is_dead`: no attempt of the run writes events any more, and nobody recorded its end. `is_waiting`: its job begins
    the next attempt.
    """

    run: str
    standing: state.Standing
    attempt: int = 0
    step: int = 0
    silent_s: float | None = None
    is_dead: bool = False
    is_waiting: bool = False
    reason: EndReason | None = None


def look(repo: Repository, run: str, limit_s: float) -> Sign:
    """Return the state of a run. It is dead after `limit_s` seconds without a batch. Raises M5Error."""
    found = state.load_newest(repo, run)
    newest = found.newest
    if newest is None:
        return Sign(run=run, standing=found.standing)
    sign = Sign(run=run, standing=found.standing, attempt=newest.attempt, step=found.last_step, reason=newest.reason)
    if found.standing != "running":
        # The next command on the machine of a killed leader records this end. The leader sent no message.
        is_dead = newest.reason is not None and newest.reason.kind == "supervisor killed"
        return msgspec.structs.replace(sign, is_dead=is_dead)
    silent_s = repo.store.now() - ledger.newest_s(repo, run, newest.attempt)
    return msgspec.structs.replace(sign, silent_s=silent_s, is_dead=silent_s > limit_s)
