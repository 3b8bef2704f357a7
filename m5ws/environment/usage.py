"""Modules and libraries that ranks loaded. A difference in a distribution that no rank loaded cannot change bits.

A distribution counts as loaded if a rank loaded one of its places. Without a list of its files, or without a record of
loaded modules, every distribution counts as loaded.
"""

from collections.abc import Iterable, Sequence

import msgspec

from m5ws.environment import drift
from m5ws.records.environment import Observed
from m5ws.records.ledger import NODE, AnyEvent, Imported, RankStarted
from m5ws.records.verdict import Change
from m5ws.repository.ledger import ledger, summaries
from m5ws.repository.repository import Repository

_OF_DISTRIBUTIONS = ("distribution.", "origin.")


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Places of modules that ranks loaded, and names of the native libraries among them."""

    places: frozenset[str] = frozenset()
    libraries: frozenset[str] = frozenset()

    def __or__(self, more: "Usage") -> "Usage":
        return Usage(places=self.places | more.places, libraries=self.libraries | more.libraries)


class EnvironmentSide(msgspec.Struct, frozen=True, kw_only=True):
    """One of two environments. `usage` is None before a rank has run in it."""

    observed: Observed
    usage: Usage | None = None


def of_run(repo: Repository, run: str) -> Usage | None:
    """Return the modules and libraries that the ranks of all attempts loaded; None if no rank recorded them."""
    return _together(of_attempt(repo, run, attempt) for attempt in ledger.attempts(repo, run))


def of_attempt(repo: Repository, run: str, attempt: int) -> Usage | None:
    """Return the modules and libraries that an attempt's ranks loaded; None unless each started rank recorded them."""
    origins = summaries.load(repo, run, attempt)
    usages = [_used(events) for origin, events in origins.items() if origin != NODE]
    return None if None in usages else _together(usages)


def before_launch(pinned: EnvironmentSide, observed: Observed) -> tuple[Change, ...]:
    """Return the drift from an environment in which ranks ran to the environment of a future launch."""
    return rate_unused(drift.drift(pinned.observed, observed), pinned, EnvironmentSide(observed=observed))


def rate_unused(changes: Iterable[Change], old: EnvironmentSide, new: EnvironmentSide) -> tuple[Change, ...]:
    """Return the changes; changes in distributions and libraries that no rank loaded get the rating `cannot`.

    Without `usage` of the old side the ratings stay the same. The new side has no `usage` before its launch.
    """
    used = _together((old.usage, new.usage))
    if old.usage is None or used is None:
        return tuple(changes)
    who = "no rank" if new.usage is not None else "no rank of the run"
    return drift.ordered(_judged(change, (old.observed, new.observed), used, who) for change in changes)


def _judged(change: Change, sides: Sequence[Observed], used: Usage, who: str) -> Change:
    if change.part != "environment" or change.rating == "cannot":
        return change
    kind = next((kind for kind in _OF_DISTRIBUTIONS if change.name.startswith(kind)), None)
    if kind is not None:
        name = change.name.removeprefix(kind)
        if drift.is_run(name) or is_imported(name, sides, used):
            return change
        return msgspec.structs.replace(change, rating="cannot", detail=f"{who} imported it")
    library = drift.library_of(change.name)
    if library is None or library in used.libraries:
        return change
    return msgspec.structs.replace(change, rating="cannot", detail=f"{who} loaded {library}")


def is_imported(name: str, sides: Sequence[Observed], used: Usage) -> bool:
    """Return False only if no rank loaded a place that the distribution has on either side."""
    having = [side for side in sides if name in side.distributions]
    places = [(side.provides or {}).get(name) for side in having]
    if not having or None in places:
        return True
    return any(_meet(place, loaded) for own in places for place in own or () for loaded in used.places)


def _meet(place: str, loaded: str) -> bool:
    """Return True if two places are the same, or one contains the other place."""
    return f"{place}/".startswith(f"{loaded}/") or f"{loaded}/".startswith(f"{place}/")


def _used(events: Iterable[AnyEvent]) -> Usage | None:
    """Return the modules and libraries that a rank with these events loaded; None if it recorded none."""
    places, libraries, known = set[str](), set[str](), False
    for event in events:
        if isinstance(event, RankStarted | Imported):
            loaded = event.facts if isinstance(event, RankStarted) else event.libraries
            libraries |= {name for name, path in loaded.items() if name.startswith(drift.LOADED) and path}
        if isinstance(event, Imported):
            known = True
            places |= set(event.modules)
    return Usage(places=frozenset(places), libraries=frozenset(libraries)) if known else None


def _together(usages: Iterable[Usage | None]) -> Usage | None:
    known = [usage for usage in usages if usage is not None]
    total = Usage()
    for usage in known:
        total |= usage
    return total if known else None
