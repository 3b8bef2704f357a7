"""The joint outcome of several verdicts: on segments, or on several replays of one run.

`reproduce --segments`, `attest` and `verify` join verdicts here, so they cannot disagree.
"""

from collections.abc import Sequence

from m5ws.records.run import Segment
from m5ws.records.verdict import Outcome, Verdict


def joint_outcome(verdicts: Sequence[Verdict], segments: Sequence[Segment]) -> tuple[Outcome, str]:
    """Return the outcome of verdicts on a run that has `segments`, and its reason.

    A difference in one verdict decides. A verdict that compared nothing decides only if there is no other.
    """
    for bad in ("diverged", "nondeterministic"):
        for verdict in verdicts:
            if verdict.outcome == bad:
                return verdict.outcome, f"{verdict.segment or 'the whole run'}: {verdict.reason or bad}"
    if any(verdict.segment is None and verdict.outcome == "reproduced" for verdict in verdicts):
        return "reproduced", "the replay of the whole run is equal in everything that was compared, bit for bit"
    equal = [verdict.segment for verdict in verdicts if verdict.segment is not None and verdict.outcome == "sampled"]
    if segments and segments[0].checkpoint is None and all(segment in equal for segment in segments):
        return "reproduced", f"all {len(segments)} segments are equal, and each ends with the checkpoint of the next"
    for verdict in verdicts:
        if verdict.outcome == "consistent":
            return "consistent", verdict.reason or "all differences are within a tolerance"
    if equal:
        steps = ", ".join(str(segment) for segment in sorted(equal, key=lambda part: (part.first, part.last)))
        of = f" of {segments[-1].last} steps" if segments else ""
        return "sampled", f"equal, given the checkpoints they start from: {steps}{of}"
    return "not comparable", next((verdict.reason for verdict in verdicts if verdict.reason), "nothing was compared")
