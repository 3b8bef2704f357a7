"""What ranks loaded of their environment: a difference in what no rank loaded cannot change bits.

A distribution counts as loaded if a place that it brings was. One that lists no files, and runs without a record of
what their ranks loaded, are judged as if all had been loaded.
"""

from collections.abc import Iterable, Sequence

import msgspec

from m5ws.environment import drift
from m5ws.records.environment import Observed
from m5ws.records.ledger import Imported, RankStarted
from m5ws.records.verdict import Change
from m5ws.repository import concurrency
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository

_OF_DISTRIBUTIONS = ("distribution.", "origin.")


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Places of modules that ranks loaded, and names of the native libraries among them."""

    places: frozenset[str] = frozenset()
    libraries: frozenset[str] = frozenset()

    def __or__(self, other: "Usage") -> "Usage":
        return Usage(places=self.places | other.places, libraries=self.libraries | other.libraries)


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of two environments; `usage` is None where no rank has run in it yet."""

    observed: Observed
    usage: Usage | None = None


def of_run(repo: Repository, run: str) -> Usage | None:
    """Return the modules and libraries that the ranks of all attempts loaded; None if no rank recorded them."""
    return _together(of_attempt(repo, run, attempt) for attempt in ledger.attempts(repo, run))


def of_attempt(repo: Repository, run: str, attempt: int) -> Usage | None:
    """Return the modules and libraries that an attempt's ranks loaded; None unless each started rank recorded them."""
    ranks = [rank for rank in ledger.ranks(repo, run, attempt) if rank != ledger.LAUNCHER]
    found = [*concurrency.each(lambda rank: _of_rank(repo, run, attempt, rank), ranks)]
    return None if None in found else _together(found)


def ahead(pinned: Side, observed: Observed) -> tuple[Change, ...]:
    """Return the drift from an environment that ranks ran in to the one of a launch that is yet to come."""
    return judged(drift.drift(pinned.observed, observed), pinned, Side(observed=observed))


def judged(changes: Iterable[Change], old: Side, new: Side) -> tuple[Change, ...]:
    """Return differences of two environments, those in what no rank loaded as ones that cannot change bits.

    Nothing is known of that where the old side has no `usage`; the new one has none before its launch.
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
        if drift.is_run(name) or _is_imported(name, sides, used):
            return change
        return msgspec.structs.replace(change, rating="cannot", detail=f"{who} imported it")
    library = drift.library_of(change.name)
    if library is None or library in used.libraries:
        return change
    return msgspec.structs.replace(change, rating="cannot", detail=f"{who} loaded {library}")


def _is_imported(name: str, sides: Sequence[Observed], used: Usage) -> bool:
    """Return True unless it is known that no rank loaded a place that a distribution brings on either side."""
    there = [side for side in sides if name in side.distributions]
    places = [(side.provides or {}).get(name) for side in there]
    if not there or None in places:
        return True
    return any(_meet(place, loaded) for own in places for place in own or () for loaded in used.places)


def _meet(one: str, other: str) -> bool:
    """Return True if two places are the same, or one contains the other."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _of_rank(repo: Repository, run: str, attempt: int, rank: str) -> Usage | None:
    places, libraries, known = set[str](), set[str](), False
    for batch in ledger.read(repo, run, attempt, rank):
        for event in map(ledger.decode_event, batch.events):
            if isinstance(event, RankStarted | Imported):
                found = event.facts if isinstance(event, RankStarted) else event.libraries
                libraries |= {name for name, path in found.items() if name.startswith(drift.LOADED) and path}
            if isinstance(event, Imported):
                known = True
                places |= set(event.modules)
    return Usage(places=frozenset(places), libraries=frozenset(libraries)) if known else None


def _together(found: Iterable[Usage | None]) -> Usage | None:
    known = [usage for usage in found if usage is not None]
    total = Usage()
    for usage in known:
        total |= usage
    return total if known else None
