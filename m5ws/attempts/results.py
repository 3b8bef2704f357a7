"""Results of attempts, and the exit statuses of the agents that ran them."""

import signal

import msgspec

from m5ws.agent import recovery
from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.link import StartAgain
from m5ws.records.failure import EndReason
from m5ws.records.incident import Incident
from m5ws.repository import removals
from m5ws.supervision.restarts import Decision

STATUSES = {"finished": 0, "interrupted": 130, "unsaved": recovery.UNSAVED_STATUS}
"""Exit statuses of followers by the outcome of the attempt: 1 for any other outcome."""


class AttemptResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an attempt.

    `untracked` is None if the tracker has all of the run, else the error so far. `delivered`: the store has the
    complete ledger. `asked`: the user stopped the attempt. `superseded`: a newer attempt has begun elsewhere.
    `again`: the scheduler shall start the agents again, because its time limit or a lost node ended the attempt, or by
    `restart`, the decision after a failure if `[run] restart` is set. `incident` is the record of a failure.
    """

    run: str
    attempt: int
    outcome: str
    exit_code: int
    reason: EndReason | None = None
    untracked: str | None = None
    delivered: bool = True
    asked: bool = False
    superseded: bool = False
    again: bool = False
    restart: Decision | None = None
    incident: Incident | None = None


def status_of(error: BaseException, plan: AttemptPlan) -> int:
    """Return the exit status of all agents if an error ends an attempt before it begins."""
    if isinstance(error, KeyboardInterrupt):
        is_warned = str(error) == signal.SIGUSR2.name and plan.place.job is not None and plan.context.goes_on
        return StartAgain.exit_code if is_warned else STATUSES["interrupted"]
    return getattr(error, "exit_code", 1)


def status_of_all(result: AttemptResult) -> int:
    """Return the exit status of all agents at the end of an attempt."""
    if result.again:
        return StartAgain.exit_code
    if result.reason is not None and result.reason.kind == "removed":
        return removals.Removed.exit_code
    return STATUSES.get(result.outcome, 1)
