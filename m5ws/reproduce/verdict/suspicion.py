"""The one rule of what a verdict may suspect, by what its replays have shown.

Nothing is named that the replays exclude: what does not repeat itself, where two replays agree; the original, where
they differ. A fault of the machine is named last, and only where all plain causes are excluded: two replays agree, and
no recorded change can be the cause.
"""

from collections.abc import Sequence

from m5ws.records.verdict import Change, Divergence, Verdict
from m5ws.reproduce.verdict import hints, reason
from m5ws.reproduce.verdict.difference_kinds import kind

_FAULT = "a fault of its machine"
_FLIP = "memory that flipped a bit"


def excludes_plain_causes(changes: Sequence[Change], *, repeats: bool | None, alone: bool = False) -> bool:
    """Return True if only what nobody recorded, or a fault of the machine, can have made a difference.

    `repeats`: whether two replays agree, None if that is not known. `alone`: a single tensor differs, which no change
    of an environment does.
    """
    able = [change for change in changes if change.rating != "cannot"]
    return repeats is True and not any(change.part != "environment" or not alone for change in able)


def of_original(verdict: Verdict, first: Divergence) -> str:
    """Return the suspicion against an original with which two replays, that agree with each other, do not agree."""
    said = verdict.reason
    if reason.is_sign(said):
        alone = hints.is_lone(said)
        flipped = excludes_plain_causes(verdict.changes, repeats=True, alone=alone) and alone
        return f", which is under suspicion: {said}{f'; if no code did it, {_FLIP}' if flipped else ''}"
    if not reason.is_unknown(said):
        return f": {said}"
    fault = excludes_plain_causes(verdict.changes, repeats=True) and kind(first) == "arithmetic"
    hidden = (
        "it may have had an input that is not recorded (a variable, a file outside the snapshot), or bad luck with "
        f"something that seldom differs{f'; if neither, {_FAULT}' if fault else ''}"
    )
    return f", which is under suspicion: {hidden}. {reason.known_of(said, first)}"
