"""Environments of hybrids: GOOD's environment rebuilt, with some distributions as in BAD.

If a bisection tests distributions, every hybrid runs in a rebuilt environment, GOOD itself included. This machine's own
environment then makes no difference.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

import msgspec

from m5ws.environment import drift, recorded, usage
from m5ws.environment.rebuild import rebuild
from m5ws.records.base import Digest
from m5ws.records.environment import Observed
from m5ws.records.recipe import Recipe
from m5ws.records.run import Run
from m5ws.records.verdict import Change
from m5ws.repository.repository import Repository

T = TypeVar("T")
_M5WS = "m5ws"


def differing_distributions(repo: Repository, good: Run, bad: Run) -> Iterator[Change]:
    """Yield the distributions whose version or origin differs between the two runs.

    Changes that cannot alter bits are left out, and so is m5ws, which is never rebuilt. Raises UsageError if a run
    recorded no environment.
    """
    old, new = (recorded.of_run(repo, run.id) for run in (good, bad))
    sides = [
        usage.EnvironmentSide(observed=observed, usage=usage.of_run(repo, run.id))
        for observed, run in ((old, good), (new, bad))
    ]
    changes = drift.drift(old, new) if sides[1].usage is None else usage.rate_unused(drift.drift(old, new), *sides)
    able = {change.name: change for change in changes if change.rating != "cannot"}
    for name in sorted((old.distributions.keys() | new.distributions.keys()) - {_M5WS}):
        change = able.get(f"distribution.{name}") or able.get(f"origin.{name}")
        if change is not None:
            yield change


def recipe(repo: Repository, good: Run, bad: Run, taken: Collection[Change], snapshot: Digest) -> Recipe:
    """Return the recipe of GOOD's environment with the distributions `taken` from BAD, for a hybrid's snapshot.

    Raises NotRebuildable.
    """
    old, new = (recorded.of_run(repo, run.id) for run in (good, bad))
    mixed = _mixed(old, new, {_distribution(change) for change in taken})
    return rebuild.recipe(repo, good.id, snapshot, mixed)


def follows(change: Change, taken: Collection[Change]) -> bool:
    """Return True if an observed change is of a distribution in `taken`, or is caused by the distribution."""
    names = {_distribution(distribution) for distribution in taken}
    kind, _, rest = change.name.partition(".")
    own = rest if kind in ("distribution", "origin") else change.name.removeprefix("loaded ")
    return own in names or kind in names


def _distribution(change: Change) -> str:
    return change.name.partition(".")[2]


def _mixed(old: Observed, new: Observed, names: Collection[str]) -> Observed:
    def each(good: Mapping[str, T], bad: Mapping[str, T]) -> dict[str, T]:
        kept = {name: value for name, value in good.items() if name not in names}
        return kept | {name: value for name, value in bad.items() if name in names}

    known = old.origins is not None and new.origins is not None
    return msgspec.structs.replace(
        old,
        distributions=each(old.distributions, new.distributions),
        origins=each(old.origins or {}, new.origins or {}) if known else None,
    )
