"""Two runs that cannot be equal in bits (another machine, another library): how far apart what they recorded is.

The statistic is the largest relative difference, |a - b| / max(|a|, |b|), over every quantity of every step and rank.
It bounds what was recorded and nothing else: two trajectories that lie this close are *consistent*, never *identical*.
"""

import math
from collections.abc import Iterator

import msgspec

from m5ws.records import exact
from m5ws.records.ledger import Step
from m5ws.records.verdict import Apart, Verdict
from m5ws.reproduce.compare import Comparison


def judged(verdict: Verdict, comparison: Comparison, tolerance: float) -> Verdict:
    """Return the verdict on a replay that diverged and went on to its end, by `tolerance`.

    It stays *diverged* where the replay was fed other batches, lacks a step or a quantity, or is further apart.
    """
    if verdict.outcome != "diverged":
        return verdict
    if why := _other_run(comparison):
        return msgspec.structs.replace(verdict, reason=f"{verdict.reason}; not within a tolerance: {why}")
    found = _furthest(comparison)
    if found is None:
        return msgspec.structs.replace(verdict, reason=f"{verdict.reason}; no quantity was recorded to hold against it")
    where = f"{found.quantity} of step {found.step}, rank {found.rank}"
    said = f"the largest relative difference of {found.values:,} recorded values is {found.relative:.3g} ({where})"
    if found.relative > tolerance:
        words = f"{verdict.reason}; {said}, more than {tolerance:g}"
        return msgspec.structs.replace(verdict, apart=found, reason=words)
    words = f"not the same bits; {said}, within {tolerance:g}"
    return msgspec.structs.replace(verdict, outcome="consistent", apart=found, reason=words)


def _other_run(comparison: Comparison) -> str | None:
    """Return why the two were not given the same to do, or not all of it was done."""
    if not comparison.original.by_steps:
        return "the script records no steps (m5ws.session)"
    if missing := comparison.missing():
        return missing[0]
    for original, replayed in _steps(comparison):
        if original.batch != replayed.batch:
            return f"another batch was fed at step {original.step}"
        if original.quantities.keys() != replayed.quantities.keys():
            return f"other quantities were recorded at step {original.step}"
    return None


def _furthest(comparison: Comparison) -> Apart | None:
    """Return the value that lies furthest from the original's, the first of equals."""
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


def relative(one: str, other: str) -> float:
    """Return the relative difference of two numbers, given as exact text; infinite where one is not finite."""
    if one == other:
        return 0.0
    a, b = exact.decode(one), exact.decode(other)
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0
