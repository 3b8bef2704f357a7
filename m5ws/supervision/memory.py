"""Earlier incidents in the store that match a new incident, in sentences.

An incident of one class on one host points to the host, and an incident at one line of code points to the code. Only
facts of the store are named, and nothing is concluded from them.
"""

from collections.abc import Iterator, Sequence

from m5ws.environment.drift import drift
from m5ws.records.environment import Observed
from m5ws.records.incident import Incident
from m5ws.records.ledger import COMPLETE
from m5ws.repository import concurrency
from m5ws.repository.ledger import ledger
from m5ws.repository.references import incidents, run_index
from m5ws.repository.repository import Repository
from m5ws.wording.changes import title
from m5ws.wording.incidents import describe_period, ordinal
from m5ws.wording.lists import list_names

_MOST = 200
"""Incidents that are compared: the newest."""
_DAYS_S = 30 * 86_400.0
_MOST_RUNS = 20
"""Later runs in which a success on the host is searched: the first after the incident."""
_NAMED = 3


def recall(repo: Repository, incident: Incident) -> tuple[str, ...]:
    """Return sentences about earlier incidents that match. Raises M5Error if a record cannot be read."""
    own = (incident.run, incident.attempt)
    earlier = [each for each in incidents.newest(repo, _MOST) if (each.run, each.attempt) != own]
    kin = [each for each in earlier if _kind(each) == _kind(incident) and each.time_s <= incident.time_s]
    return (*_recall_host(repo, incident, kin), *_recall_place(incident, kin))


def _recall_host(repo: Repository, incident: Incident, kin: Sequence[Incident]) -> Iterator[str]:
    """Yield sentences about incidents on the same host, and about the first success there after the last of them."""
    if incident.cause is None or incident.host is None:
        return
    recent = [each for each in kin if each.host == incident.host and incident.time_s - each.time_s <= _DAYS_S]
    if not recent:
        return
    period = describe_period(incident.time_s - recent[0].time_s)
    yield f"The {ordinal(len(recent) + 1)} {incident.cause.kind} on {incident.host} in {period}."
    if success := _find_success(repo, recent[-1]):
        yield success


def _recall_place(incident: Incident, kin: Sequence[Incident]) -> Iterator[str]:
    """Yield a sentence about incidents with the same innermost frame."""
    place = _place(incident)
    same = [each for each in kin if _place(each) == place] if place is not None else []
    if same:
        named = [f"run {each.run}, attempt {each.attempt}" for each in reversed(same)]
        yield f"The {ordinal(len(same) + 1)} such failure at {place}, after {list_names(named, '; ', _NAMED)}."


def _kind(incident: Incident) -> str | None:
    return incident.cause.kind if incident.cause is not None else None


def _place(incident: Incident) -> str | None:
    """Return the innermost frame of the first failure that a rank recorded, or the line at which a rank is stuck."""
    reason = incident.reason
    if reason is None:
        return None
    return reason.failure.place if reason.failure is not None else reason.place


def _find_success(repo: Repository, last: Incident) -> str | None:
    """Return the changes of the environment between an incident and the first later success on its host.

    None if there is no such attempt in the first later runs, or no recorded change that can have an effect.
    """
    if last.environment is None:
        return None
    later = [(last.run, attempt) for attempt in ledger.attempts(repo, last.run) if attempt > last.attempt]
    facts = run_index.load(repo).items()
    begun = sorted(
        (fact.created.created_s, run, fact.ended.attempt)
        for run, fact in facts
        if fact.created is not None and fact.ended is not None and fact.created.created_s > last.time_s
    )
    later += [(run, attempt) for _, run, attempt in begun[:_MOST_RUNS]]
    found = concurrency.for_each(lambda each: _environment_of_success(repo, *each, last.host), later)
    for (run, _), digest in zip(later, found, strict=True):
        if digest is not None:
            changes = drift(*(repo.objects.get_record(each, Observed) for each in (last.environment, digest)))
            grave = [title(change, with_part=False) for change in changes if change.rating != "cannot"]
            named = list_names(grave, "; ", _NAMED)
            return f"After the last of them, run {run} finished there with {named}." if grave else None
    return None


def _environment_of_success(repo: Repository, run: str, attempt: int, host: str | None) -> str | None:
    """Return the digest of the environment of a host in an attempt that finished; None if it is no such attempt."""
    end = ledger.ended(repo, run, attempt)
    if end is None or end.outcome not in COMPLETE:
        return None
    return next((start.observed for start in ledger.node_starts(repo, run, attempt) if start.host == host), None)
