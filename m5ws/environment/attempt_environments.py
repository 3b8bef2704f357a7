"""Comparison of the environments of attempts. Facts from inside a rank replace facts from before its launch."""

import logging
from collections.abc import Sequence
from itertools import groupby

import msgspec

from m5ws.environment import recorded, usage
from m5ws.environment.drift import drift, rate
from m5ws.environment.usage import EnvironmentSide, Usage
from m5ws.errors import M5Error
from m5ws.records.environment import Observed
from m5ws.records.ledger import NODE, NcclLogged, NodeStarted, RankStarted
from m5ws.records.verdict import Change
from m5ws.repository.ledger import ledger, summaries
from m5ws.repository.repository import Repository
from m5ws.wording.changes import title
from m5ws.wording.lists import list_names

_log = logging.getLogger(__name__)
_NAMED = 8

Attempt = tuple[str, int | None]
"""A run, and the number of its attempt; None for a run that never started."""


def between_runs(repo: Repository, a: str, b: str, attempt: int | None = None) -> tuple[Change, ...]:
    """Return the drift between two runs' last attempts, or from `attempt` of `a`."""
    begun = [ledger.attempts(repo, run) for run in (a, b)]
    old = attempt if attempt in begun[0] else max(begun[0], default=None)
    return drift_between(repo, (a, old), (b, max(begun[1], default=None)))


def between_first(repo: Repository, a: str, b: str) -> tuple[Change, ...]:
    """Return the drift between two runs' first attempts."""
    old, new = (min(ledger.attempts(repo, run), default=None) for run in (a, b))
    return drift_between(repo, (a, old), (b, new))


def drift_by_attempt(repo: Repository, run: str) -> dict[int, tuple[Change, ...]]:
    """Return the drift from a run's first attempt to each later attempt that has drift, by number."""
    first, *later = ledger.attempts(repo, run) or [0]
    drifts = {attempt: drift_between(repo, (run, first), (run, attempt)) for attempt in later}
    return {attempt: changes for attempt, changes in drifts.items() if changes}


def notice(repo: Repository, run: str, attempt: int, observed: Observed) -> str | None:
    """Return the differences between a later attempt's environment and the first attempt's that can change bits.

    None if there are none, or if the first environment cannot be read: no attempt fails because of a notice.
    """
    if attempt == 1:
        return None
    try:
        began = recorded.of_attempt(repo, run, min(ledger.attempts(repo, run)))
        if not _is_grave(drift(began, observed)):
            return None
        changes = usage.before_launch(EnvironmentSide(observed=began, usage=usage.of_run(repo, run)), observed)
    except (M5Error, OSError) as error:
        _log.warning("cannot read the environment of the first attempt of run %s: %s", run, error)
        return None
    grave = [title(change, with_part=False) for change in changes if change.rating != "cannot"]
    return list_names(grave, "; ", _NAMED) or None


def drift_between(repo: Repository, first: Attempt, second: Attempt) -> tuple[Change, ...]:
    """Return the drift between two attempts. Differences in modules that no rank loaded cannot change bits.

    A change on only some ranks is returned with their numbers.
    """
    old, new = _by_rank(repo, *first), _by_rank(repo, *second)
    if not old or not new:
        if not old and not new:
            return ()
        recorded_sides = [None if not side else "recorded" for side in (old, new)]
        change = rate("environment", "observed", *recorded_sides)
        return (msgspec.structs.replace(change, detail="one of the runs never started: not comparable"),)
    common = sorted(old.keys() & new.keys())
    loaded = _loaded(repo, first, second) if any(_is_grave(drift(old[rank], new[rank])) for rank in common) else None
    changes = [(change, rank) for rank in common for change in _drift(old[rank], new[rank], loaded)]
    changes.sort(key=lambda item: (item[0].rating == "can", item[0].rating == "cannot", item[0].name, repr(item[0])))
    return tuple(
        _on_ranks(change, [rank for _, rank in group], len(common))
        for change, group in groupby(changes, key=lambda item: item[0])
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
    return usage.rate_unused(
        changes,
        *(EnvironmentSide(observed=observed, usage=used) for observed, used in zip((old, new), loaded, strict=True)),
    )


def _on_ranks(change: Change, ranks: Sequence[str], world: int) -> Change:
    if len(ranks) == world:
        return change
    return msgspec.structs.replace(change, detail=f"on rank {', '.join(ranks)}: {change.detail}")


def _by_rank(repo: Repository, run: str, attempt: int | None) -> dict[str, Observed]:
    """Return the environment of each rank of an attempt. Effective values in a rank replace the facts of its node.

    If no rank started, the one entry `node` has the facts of the node. Empty without an attempt, or without its node.
    """
    events = summaries.load(repo, run, attempt) if attempt is not None else {}
    node = next((event for event in events.get(NODE, ()) if isinstance(event, NodeStarted)), None)
    if node is None:
        return {}
    logged = {str(event.rank): event.facts for event in events[NODE] if isinstance(event, NcclLogged)}
    observed, by_rank = repo.objects.get_record(node.observed, Observed), dict[str, Observed]()
    for rank, each in events.items():
        if (start := next((event for event in each if isinstance(event, RankStarted)), None)) is not None:
            facts = observed.facts | start.facts | {"world": str(start.world)} | logged.get(rank, {})
            by_rank[rank] = msgspec.structs.replace(observed, facts=facts)
    return by_rank or {NODE: observed}
