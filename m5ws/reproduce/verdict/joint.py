"""The outcome that several verdicts have together: of segments, or of several replays of one run.

`reproduce --segments`, `attest` and `verify` join verdicts here, so they cannot disagree.
"""

from collections.abc import Sequence

from m5ws.records.run import Segment
from m5ws.records.verdict import Outcome, Verdict


def joint_outcome(verdicts: Sequence[Verdict], segments: Sequence[Segment]) -> tuple[Outcome, str]:
    """Return the outcome of verdicts on a run that has `segments`, and its reason.

    A difference in any of them counts before all else. A verdict that compared nothing counts if there is no other.
    """
    for bad in ("diverged", "nondeterministic"):
        for verdict in verdicts:
            if verdict.outcome == bad:
                return verdict.outcome, f"{verdict.segment or 'the whole run'}: {verdict.reason or bad}"
    if any(verdict.segment is None and verdict.outcome == "reproduced" for verdict in verdicts):
        return "reproduced", "the whole run was replayed, and everything that was compared is equal, bit for bit"
    equal = [verdict.segment for verdict in verdicts if verdict.segment is not None and verdict.outcome == "sampled"]
    if segments and segments[0].checkpoint is None and all(segment in equal for segment in segments):
        return "reproduced", f"all {len(segments)} segments are equal, and each ends with the checkpoint of the next"
    for verdict in verdicts:
        if verdict.outcome == "consistent":
            return "consistent", verdict.reason or "it lies within a tolerance"
    if equal:
        steps = ", ".join(str(segment) for segment in sorted(equal, key=lambda one: (one.first, one.last)))
        of = f" of {segments[-1].last} steps" if segments else ""
        return "sampled", f"equal, given the checkpoints they start from: {steps}{of}"
    return "not comparable", next((verdict.reason for verdict in verdicts if verdict.reason), "nothing was compared")
