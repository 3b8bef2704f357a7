"""The outcome of an attempt, from the signs of its end. The first sign in one order counts.

Whoever owns the run comes first: a newer attempt, a removal, a user. Then comes the reason for which m5ws itself ended
the attempt: a lost node, a failed launch or a failed rank after that end follows from it.
"""

import msgspec

from m5ws.agent.link import StartAgain
from m5ws.attempts import results
from m5ws.records.failure import EndReason

Judgement = tuple[str, int, EndReason | None]
"""The outcome of an attempt, its exit status, and the reason if there is one."""


class Signs(msgspec.Struct, frozen=True, kw_only=True):
    """The signs of an end. `status` is the exit status of this node, and `worst` the highest of other nodes.

    `fence`: a newer attempt or a removal, with its exit status. `request`: the signal of a user. `ending`: m5ws ended
    the attempt. `problem`: the processes could not be launched. `network`: the ranks use a wrong network. `enough`: no
    more steps were needed. `unrestored`: the script of a fork restored nothing.
    """

    status: int
    worst: int = 0
    fence: tuple[int, EndReason] | None = None
    request: str | None = None
    cancel: EndReason | None = None
    ending: EndReason | None = None
    lost: EndReason | None = None
    problem: str | None = None
    network: str | None = None
    enough: bool = False
    unrestored: bool = False


def judge(signs: Signs) -> Judgement:
    """Return the outcome of an attempt."""
    if signs.fence is not None:
        return "interrupted", *signs.fence
    if signs.request is not None:
        return "interrupted", signs.status, EndReason(kind="stopped", signal=signs.request)
    if signs.cancel is not None:
        return "interrupted", results.STATUSES["interrupted"], signs.cancel
    if signs.ending is not None:
        return "failed", 1, signs.ending
    if signs.lost is not None:
        return "failed", StartAgain.exit_code, signs.lost
    if signs.problem is not None:
        return "failed", signs.status, EndReason(kind="not launched", problem=signs.problem)
    if signs.network is not None and signs.status:
        return "failed", 1, EndReason(kind="wrong network", problem=signs.network)
    if signs.enough:
        return "interrupted", signs.status, EndReason(kind="enough steps")
    if status := signs.status or signs.worst:
        return "failed", status, None
    if signs.unrestored:
        return "failed", 1, EndReason(kind="fork not restored")
    return "finished", 0, None
