"""The joint outcome of several verdicts: on segments, or on several replays of one run.

`reproduce --segments`, `attest` and `verify` join verdicts here, so they cannot disagree.
"""

from collections.abc import Sequence

from m5ws.records.reasons import JointReason
from m5ws.records.run import Segment
from m5ws.records.verdict import Outcome, Verdict


def joint_outcome(verdicts: Sequence[Verdict], segments: Sequence[Segment]) -> tuple[Outcome, JointReason]:
    """Return the outcome of verdicts on a run that has `segments`, and its reason.

    A difference in one verdict decides. A verdict that compared nothing decides only if there is no other.
    """
    if bad := _first_with(verdicts, "diverged") or _first_with(verdicts, "nondeterministic"):
        return bad.outcome, name_verdict(bad)
    if any(verdict.segment is None and verdict.outcome == "reproduced" for verdict in verdicts):
        return "reproduced", JointReason(kind="whole run")
    equal = tuple(
        verdict.segment for verdict in verdicts if verdict.segment is not None and verdict.outcome == "sampled"
    )
    if segments and segments[0].checkpoint is None and all(segment in equal for segment in segments):
        return "reproduced", JointReason(kind="all segments", of=len(segments))
    if equal:
        last = segments[-1].last if segments else None
        return "sampled", JointReason(kind="some segments", equal=equal, last=last)
    return "not comparable", name_verdict(verdicts[0]) if verdicts else JointReason(kind="no verdict")


def name_verdict(verdict: Verdict) -> JointReason:
    """Return the reason that one verdict decides."""
    return JointReason(kind="one verdict", replay=verdict.replay, segment=verdict.segment)


def _first_with(verdicts: Sequence[Verdict], outcome: Outcome) -> Verdict | None:
    return next((verdict for verdict in verdicts if verdict.outcome == outcome), None)
