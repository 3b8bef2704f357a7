"""Comparison of two runs that cannot give the same bits, on other hardware or libraries, by a tolerance.

The statistic is the largest relative difference, |a - b| / max(|a|, |b|), over every quantity of every step and rank.
It covers recorded values alone. Two runs within the tolerance are *consistent*, never *identical*.
"""

import math
from collections.abc import Iterator

import msgspec

from m5ws.records import exact
from m5ws.records.ledger import Step
from m5ws.records.verdict import Apart, Verdict
from m5ws.reproduce.compare import Comparison


def judge_tolerance(verdict: Verdict, comparison: Comparison, tolerance: float) -> Verdict:
    """Return the verdict by `tolerance` on a replay that diverged and continued to its end.

    The outcome stays *diverged* if the replay had other batches, lacks a step or a quantity, or exceeds the tolerance.
    """
    if verdict.outcome != "diverged":
        return verdict
    if why := _other_run(comparison):
        return msgspec.structs.replace(verdict, reason=f"{verdict.reason}. The tolerance does not apply: {why}")
    furthest = _furthest(comparison)
    if furthest is None:
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


def _other_run(comparison: Comparison) -> str | None:
    """Return the reason why a tolerance does not apply: other inputs, or missing steps. None if it applies."""
    if not comparison.original.by_steps:
        return "the script records no steps (m5ws.session)"
    if missing := comparison.missing():
        return missing[0]
    for original, replayed in _steps(comparison):
        if original.batch != replayed.batch:
            return f"the batches of step {original.step} differ"
        if original.quantities.keys() != replayed.quantities.keys():
            return f"the names of the quantities of step {original.step} differ"
    return None


def _furthest(comparison: Comparison) -> Apart | None:
    """Return the value with the largest relative difference, the first one of equals."""
    furthest: Apart | None = None
    values = 0
    for rank, steps in sorted(comparison.original.steps.items()):
        for step, original in sorted(steps.items()):
            replayed = comparison.replay.steps[rank][step].quantities
            for name, text in original.quantities.items():
                values += 1
                apart = relative(text, replayed[name])
                if furthest is None or apart > furthest.relative:
                    furthest = Apart(relative=apart, quantity=name, step=step, rank=rank, values=0)
    return msgspec.structs.replace(furthest, values=values) if furthest is not None else None


def _steps(comparison: Comparison) -> Iterator[tuple[Step, Step]]:
    for rank, steps in sorted(comparison.original.steps.items()):
        for step, original in sorted(steps.items()):
            yield original, comparison.replay.steps[rank][step]


def relative(original: str, replayed: str) -> float:
    """Return the relative difference of two numbers, given as exact text. It is infinite if one is not finite."""
    if original == replayed:
        return 0.0
    a, b = exact.decode(original), exact.decode(replayed)
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0
