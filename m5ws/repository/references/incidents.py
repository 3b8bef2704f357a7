"""Incidents of runs: `incidents/<run>/<attempt>`, each written once, at the failed end of an attempt."""

from m5ws import secret_gate
from m5ws.records.incident import INCIDENTS, Incident
from m5ws.repository import bindings, concurrency
from m5ws.repository.repository import Repository


def key(run: str, attempt: int) -> str:
    """Return the key of the incident of an attempt."""
    return f"{INCIDENTS}{run}/{attempt:04d}"


def publish(repo: Repository, incident: Incident) -> Incident:
    """Publish an incident, and return it as stored, with secrets masked. Raises ObjectExists."""
    return bindings.create(repo.store, key(incident.run, incident.attempt), secret_gate.masked(incident))


def load(repo: Repository, run: str, attempt: int) -> Incident | None:
    """Return the incident of an attempt, or None. Raises CorruptObject, Misplaced, UnknownSchema."""
    return bindings.find(repo.store, key(run, attempt), Incident)


def newest_of(repo: Repository, run: str) -> Incident | None:
    """Return the newest incident of a run, or None. Raises as `load`."""
    names = repo.store.names(f"{INCIDENTS}{run}/")
    return bindings.record(repo.store, f"{INCIDENTS}{run}/{names[-1]}", Incident) if names else None


def newest(repo: Repository, most: int) -> list[Incident]:
    """Return the incidents of all runs, oldest first, at most the newest `most` of them. Raises as `load`."""
    stats = sorted(repo.store.list(INCIDENTS), key=lambda stat: stat.modified_s)[-most:]
    found = concurrency.for_each(lambda stat: bindings.record(repo.store, stat.key, Incident), stats)
    return sorted(found, key=lambda incident: incident.time_s)
