"""Sentences of incidents: the cause, the place where it began, and what to do."""

from m5ws.records.cause import Cause
from m5ws.records.incident import Incident
from m5ws.records.job import Job

_SUFFIXES = {1: "st", 2: "nd", 3: "rd"}
_DAY_S = 86_400.0


def describe_cause(incident: Incident) -> str:
    """Return the cause of an incident in one line."""
    cause = incident.cause
    if cause is None:
        return "unknown: no rule matches"
    log = f"rank {cause.rank}" if cause.rank.isdigit() else cause.rank
    place = ", ".join(filter(None, (log, incident.host)))
    effect = "unknown, with the effect " if cause.level == "cascade" else ""
    return f"{effect}{cause.kind}: {cause.title}{f' ({place})' if place else ''}"


def describe_advice(cause: Cause) -> str:
    """Return the advice on a cause, the party that can act, and the use of a restart."""
    return f"{cause.advice} Owner: {cause.owner}. A restart {'may help' if cause.retry else 'does not help'}."


def describe_exclusion(incident: Incident, job: Job) -> str | None:
    """Return the way to leave out the host of an incident that is to blame; None without such a host or way."""
    is_to_blame = incident.cause is not None and incident.cause.owner == "infrastructure"
    # The other engines themselves choose machines.
    if not is_to_blame or incident.host is None or job.engine not in ("slurm", "hosts"):
        return None
    change = f'add "--exclude={incident.host}" to directives' if job.engine == "slurm" else "remove it from hosts"
    again = f"`m5ws resume {incident.run} --on {job.cluster}`"
    return f"To leave out {incident.host}, {change} in [clusters.{job.cluster}], and start again by {again}."


def ordinal(number: int) -> str:
    """Return a number as an ordinal, such as 3rd."""
    suffix = "th" if 10 < number % 100 < 20 else _SUFFIXES.get(number % 10, "th")
    return f"{number:,}{suffix}"


def describe_period(seconds: float) -> str:
    """Return a period in whole days, or in hours if it is shorter than two days."""
    if seconds >= 2 * _DAY_S:
        return f"{seconds / _DAY_S:.0f} days"
    hours = max(1, round(seconds / 3600))
    return f"{hours} hour{'s' * (hours > 1)}"
