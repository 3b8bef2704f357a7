"""Rules for suspicions in a verdict, by the result of its replays.

A verdict names no cause that its replays exclude. If two replays agree, the run is deterministic. If they differ, the
original is not suspected. A machine fault is named last, and only if two replays agree and no recorded change can be
the cause.
"""

from collections.abc import Sequence

from m5ws.records.verdict import Change, Divergence, Verdict
from m5ws.reproduce.verdict import hints, reason
from m5ws.reproduce.verdict.difference_kinds import kind

_FAULT = "a fault of its machine"
_FLIP = "a bit that flipped in memory"


def excludes_plain_causes(changes: Sequence[Change], *, repeats: bool | None, alone: bool = False) -> bool:
    """Return True if only an unrecorded input or a machine fault can have made a difference.

    `repeats` is True if two replays agree, None if that is unknown. `alone`: a single tensor differs, which no change
    of an environment causes.
    """
    able = [change for change in changes if change.rating != "cannot"]
    return repeats is True and not any(change.part != "environment" or not alone for change in able)


def of_original(verdict: Verdict, first: Divergence) -> str:
    """Return the suspicion about an original that differs from two replays that agree with each other."""
    why = verdict.reason
    if reason.is_hint(why):
        alone = hints.is_lone(why)
        flipped = excludes_plain_causes(verdict.changes, repeats=True, alone=alone) and alone
        return f", which is under suspicion: {why}{f'; if no code did, {_FLIP}' if flipped else ''}"
    if not reason.is_unknown(why):
        return f": {why}"
    fault = excludes_plain_causes(verdict.changes, repeats=True) and kind(first) == "arithmetic"
    hidden = (
        "it may have used an input that is not recorded (a variable, a file outside the snapshot), or an operation "
        f"that rarely gives different bits{f'; if neither, {_FAULT}' if fault else ''}"
    )
    return f", which is under suspicion: {hidden}. {reason.known_facts(why, first)}"
