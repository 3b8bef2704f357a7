"""Comparison of two runs that cannot give the same bits, on other hardware or libraries, by a tolerance.

The statistic is the largest relative difference, |a - b| / max(|a|, |b|), over every quantity of every step and rank.
It covers recorded values alone. Two runs within the tolerance are *consistent*, never *identical*.
"""

import msgspec

from m5ws.records.reasons import Gap, Tolerance
from m5ws.records.verdict import Verdict
from m5ws.reproduce import gaps
from m5ws.reproduce.compare import Comparison


def judge_tolerance(verdict: Verdict, comparison: Comparison, tolerance: float) -> Verdict:
    """Return the verdict by `tolerance` on a replay that diverged and continued to its end.

    The outcome stays *diverged* if the replay had other batches, lacks a step or a quantity, or exceeds the tolerance.
    """
    if verdict.outcome != "diverged":
        return verdict
    furthest = comparison.distances.largest
    gap = _find_gap(verdict, comparison) or (None if furthest.values else Gap(kind="no quantities"))
    reason = Tolerance(tolerance=tolerance, gap=gap)
    if gap is not None:
        return msgspec.structs.replace(verdict, reasons=(*verdict.reasons, reason))
    if furthest.relative > tolerance:
        return msgspec.structs.replace(verdict, apart=furthest, reasons=(*verdict.reasons, reason))
    return msgspec.structs.replace(verdict, outcome="consistent", apart=furthest, reasons=(reason,))


def _find_gap(verdict: Verdict, comparison: Comparison) -> Gap | None:
    """Return the gap because of which a tolerance does not apply. None if it applies."""
    if verdict.first is not None and verdict.first.is_result:
        return Gap(kind="exact results")
    if not comparison.original.by_steps:
        return Gap(kind="no quantities")
    return next(iter(gaps.missing(comparison)), comparison.distances.unlike)
