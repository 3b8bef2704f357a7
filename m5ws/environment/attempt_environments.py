"""The environments that attempts of runs had, held against each other: what each rank found inside, over what was
observed before its launch.
"""

import logging
from collections.abc import Sequence
from itertools import groupby
from typing import TypeVar

import msgspec

from m5ws.environment import recorded, usage
from m5ws.environment.drift import drift, rated, title
from m5ws.environment.usage import Side, Usage
from m5ws.errors import M5Error
from m5ws.records.environment import Observed
from m5ws.records.ledger import AttemptStarted, Event, RankStarted
from m5ws.records.verdict import Change
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository

_log = logging.getLogger(__name__)
_NAMED = 8

E = TypeVar("E", bound=Event)

Attempt = tuple[str, int | None]
"""A run, and the number of its attempt; None for a run that never started."""


def between_runs(repo: Repository, a: str, b: str, attempt: int | None = None) -> tuple[Change, ...]:
    """Return the drift between two runs' last attempts, or from `attempt` of `a`."""
    begun = [ledger.attempts(repo, run) for run in (a, b)]
    old = attempt if attempt in begun[0] else max(begun[0], default=None)
    return between(repo, (a, old), (b, max(begun[1], default=None)))


def between_first(repo: Repository, a: str, b: str) -> tuple[Change, ...]:
    """Return the drift between two runs' first attempts."""
    old, new = (min(ledger.attempts(repo, run), default=None) for run in (a, b))
    return between(repo, (a, old), (b, new))


def within(repo: Repository, run: str) -> dict[int, tuple[Change, ...]]:
    """Return the drift from a run's first attempt to each later one that has one, by number."""
    first, *later = ledger.attempts(repo, run) or [0]
    found = {attempt: between(repo, (run, first), (run, attempt)) for attempt in later}
    return {attempt: changes for attempt, changes in found.items() if changes}


def notice(repo: Repository, run: str, attempt: int, observed: Observed) -> str | None:
    """Return how the environment of a later attempt that begins can give other bits than the first one's.

    None also where that cannot be read: no attempt fails for a notice.
    """
    try:
        first, *_ = ledger.attempts(repo, run)
        return _notice(repo, run, first, observed) if first != attempt else None
    except (M5Error, OSError) as error:
        _log.warning("the environment of the first attempt of run %s is not known: %s", run, error)
        return None


def _notice(repo: Repository, run: str, first: int, observed: Observed) -> str | None:
    began = recorded.of_attempt(repo, run, first)
    if not _is_grave(drift(began, observed)):
        return None
    changes = usage.ahead(Side(observed=began, usage=usage.of_run(repo, run)), observed)
    grave = [title(change).removeprefix("environment ") for change in changes if change.rating != "cannot"]
    more = f"; and {len(grave) - _NAMED} more" if len(grave) > _NAMED else ""
    return f"{'; '.join(grave[:_NAMED])}{more}" if grave else None


def between(repo: Repository, one: Attempt, other: Attempt) -> tuple[Change, ...]:
    """Return the drift between two attempts; a difference in what no rank loaded as one that cannot change bits.

    A change that only some ranks see is returned with their numbers.
    """
    old, new = _seen(repo, *one), _seen(repo, *other)
    if not old or not new:
        if not old and not new:
            return ()
        said = [None if not side else "recorded" for side in (old, new)]
        change = rated("environment", "observed", said[0], said[1])
        return (msgspec.structs.replace(change, detail="one of the runs never started: not comparable"),)
    common = sorted(old.keys() & new.keys())
    loaded = _loaded(repo, one, other) if any(_is_grave(drift(old[rank], new[rank])) for rank in common) else None
    found = [(change, rank) for rank in common for change in _drift(old[rank], new[rank], loaded)]
    found.sort(key=lambda item: (item[0].rating == "can", item[0].rating == "cannot", item[0].name, repr(item[0])))
    return tuple(
        _on_ranks(change, [rank for _, rank in group], len(common))
        for change, group in groupby(found, key=lambda item: item[0])
    )


def _is_grave(changes: Sequence[Change]) -> bool:
    return any(change.rating != "cannot" for change in changes)


def _loaded(repo: Repository, *attempts: Attempt) -> tuple[Usage, Usage] | None:
    """Return the modules and libraries that the ranks of two attempts loaded; None unless both recorded them."""
    old, new = (usage.of_attempt(repo, run, number) if number is not None else None for run, number in attempts)
    return (old, new) if old is not None and new is not None else None


def _drift(old: Observed, new: Observed, loaded: tuple[Usage, Usage] | None) -> tuple[Change, ...]:
    changes = drift(old, new)
    if loaded is None:
        return changes
    return usage.judged(
        changes, *(Side(observed=one, usage=used) for one, used in zip((old, new), loaded, strict=True))
    )


def _on_ranks(change: Change, ranks: Sequence[str], world: int) -> Change:
    if len(ranks) == world:
        return change
    return msgspec.structs.replace(change, detail=f"on rank {', '.join(ranks)}: {change.detail}")


def _seen(repo: Repository, run: str, attempt: int | None) -> dict[str, Observed]:
    """Return the environment of each rank of an attempt: effective values replace those observed before.

    Where no rank came up, the one entry `launcher` is what was observed. Empty without an attempt.
    """
    if attempt is None:
        return {}
    started = _first(repo, run, attempt, ledger.LAUNCHER, AttemptStarted)
    observed = repo.objects.get_record(started.observed, Observed) if started is not None else Observed()
    seen: dict[str, Observed] = {}
    for rank in ledger.ranks(repo, run, attempt):
        found = _first(repo, run, attempt, rank, RankStarted) if rank != ledger.LAUNCHER else None
        if found is not None:
            facts = observed.facts | found.facts | {"world": str(found.world)}
            seen[rank] = msgspec.structs.replace(observed, facts=facts)
    return seen or ({ledger.LAUNCHER: observed} if started is not None else {})


def _first(repo: Repository, run: str, attempt: int, rank: str, kind: type[E]) -> E | None:
    """Return the first event of a kind; a chain is read no further than that."""
    for batch in ledger.read(repo, run, attempt, rank):
        for raw in batch.events:
            if isinstance(event := ledger.decode_event(raw), kind):
                return event
    return None
