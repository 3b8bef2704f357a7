"""Environments of hybrids: GOOD's, made again, with some distributions as BAD had them.

Every hybrid of a bisection that tells distributions apart runs in such a one, GOOD itself too, so that nothing else
of this machine's own environment comes between them.
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
from m5ws.repository import snapshots
from m5ws.repository.repository import Repository

T = TypeVar("T")
_M5WS = "m5ws"


def differing(repo: Repository, good: Run, bad: Run) -> Iterator[Change]:
    """Yield the distributions that the two runs began with in another version, or from elsewhere.

    Those whose change cannot alter bits are left out, and m5ws, which is never rebuilt; all of them where an image is
    pinned. Raises UsageError if a run recorded no environment.
    """
    if any(snapshots.load(repo, run.snapshot).declared.image is not None for run in (good, bad)):
        return
    old, new = (recorded.of_run(repo, run.id) for run in (good, bad))
    sides = [
        usage.Side(observed=observed, usage=usage.of_run(repo, run.id)) for observed, run in ((old, good), (new, bad))
    ]
    found = drift.drift(old, new) if sides[1].usage is None else usage.judged(drift.drift(old, new), *sides)
    able = {change.name: change for change in found if change.rating != "cannot"}
    for name in sorted((old.distributions.keys() | new.distributions.keys()) - {_M5WS}):
        change = able.get(f"distribution.{name}") or able.get(f"origin.{name}")
        if change is not None:
            yield change


def recipe(repo: Repository, good: Run, bad: Run, taken: Collection[Change], snapshot: Digest) -> Recipe:
    """Return how to make the environment of GOOD with the distributions `taken` from BAD, for a hybrid's snapshot.

    Raises NotRebuildable.
    """
    old, new = (recorded.of_run(repo, run.id) for run in (good, bad))
    mixed = _mixed(old, new, {_distribution(change) for change in taken})
    return rebuild.recipe(repo, good.id, snapshot, mixed, locked_by=(good.snapshot, bad.snapshot))


def follows(change: Change, taken: Collection[Change]) -> bool:
    """Return whether an observed change is one of a distribution's, or a fact that such a one brings with it."""
    names = {_distribution(one) for one in taken}
    kind, _, rest = change.name.partition(".")
    own = rest if kind in ("distribution", "origin") else change.name.removeprefix("loaded ")
    return own in names or kind in names


def _distribution(change: Change) -> str:
    return change.name.partition(".")[2]


def _mixed(old: Observed, new: Observed, names: Collection[str]) -> Observed:
    def each(one: Mapping[str, T], other: Mapping[str, T]) -> dict[str, T]:
        kept = {name: value for name, value in one.items() if name not in names}
        return kept | {name: value for name, value in other.items() if name in names}

    known = old.origins is not None and new.origins is not None
    return msgspec.structs.replace(
        old,
        distributions=each(old.distributions, new.distributions),
        origins=each(old.origins or {}, new.origins or {}) if known else None,
    )
