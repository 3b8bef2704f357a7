"""Comparison of two runs that cannot give the same bits, on other hardware or libraries, by a tolerance.

The statistic is the largest relative difference, |a - b| / max(|a|, |b|), over every quantity of every step and rank.
It covers recorded values alone. Two runs within the tolerance are *consistent*, never *identical*.
"""

import msgspec

from m5ws.records.verdict import Verdict, is_result
from m5ws.reproduce import gaps
from m5ws.reproduce.compare import Comparison


def judge_tolerance(verdict: Verdict, comparison: Comparison, tolerance: float) -> Verdict:
    """Return the verdict by `tolerance` on a replay that diverged and continued to its end.

    The outcome stays *diverged* if the replay had other batches, lacks a step or a quantity, or exceeds the tolerance.
    """
    if verdict.outcome != "diverged":
        return verdict
    if why := _other_run(verdict, comparison):
        return msgspec.structs.replace(verdict, reason=f"{verdict.reason}. The tolerance does not apply: {why}")
    furthest = comparison.distances.largest
    if not furthest.values:
        words = f"{verdict.reason}. The tolerance does not apply: no quantity was recorded"
        return msgspec.structs.replace(verdict, reason=words)
    where = f"{furthest.quantity} of step {furthest.step}, rank {furthest.rank}"
    largest = (
        f"the largest relative difference of {furthest.values:,} recorded values is {furthest.relative:.3g} ({where})"
    )
    if furthest.relative > tolerance:
        words = f"{verdict.reason}. T{largest[1:]}, above the tolerance {tolerance:g}"
        return msgspec.structs.replace(verdict, apart=furthest, reason=words)
    words = f"bits differ within the tolerance {tolerance:g}: {largest}"
    return msgspec.structs.replace(verdict, outcome="consistent", apart=furthest, reason=words)


def _other_run(verdict: Verdict, comparison: Comparison) -> str | None:
    """Return the reason why a tolerance does not apply: other inputs, missing steps or files. None if it applies."""
    if verdict.first is not None and is_result(verdict.first.quantity):
        return "delivered results are compared exactly"
    if not comparison.original.by_steps:
        return "the script records no steps (m5ws.session)"
    if missing := gaps.missing(comparison):
        return missing[0]
    return comparison.distances.unlike
