"""The incident of a failed attempt: its cause, and earlier incidents of the same kind. No error here fails a run."""

import logging

import msgspec

from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.ports import Ports
from m5ws.errors import M5Error
from m5ws.records.failure import EndReason
from m5ws.records.incident import Incident
from m5ws.repository.ledger import ledger
from m5ws.repository.references import incidents
from m5ws.runs import state
from m5ws.supervision import causes, diagnosis, memory
from m5ws.supervision.diagnosis import Diagnosis

_log = logging.getLogger(__name__)


def record(ports: Ports, plan: AttemptPlan, reason: EndReason | None) -> Incident | None:
    """Publish the incident of a failed attempt, whose end is in the ledger.

    None for an attempt of a replay or of a job's command, and if the store does not answer.
    """
    if not is_recorded(ports, plan):
        return None
    try:
        return incidents.publish(ports.repo, _describe(ports, plan, reason))
    except (M5Error, OSError) as error:
        _log.warning("cannot record the failure of attempt %d of run %s: %s", plan.attempt, plan.run.id, error)
        return None


def is_recorded(ports: Ports, plan: AttemptPlan) -> bool:
    """Return True if a failure of an attempt is recorded: it is of no replay, and of no job's command."""
    return plan.context.goes_on and not (ports.job is not None and ports.job.command)


def _describe(ports: Ports, plan: AttemptPlan, reason: EndReason | None) -> Incident:
    """Return the incident of a failed attempt. Raises M5Error, OSError if the store does not answer."""
    repo, run, attempt = ports.repo, plan.run.id, plan.attempt
    try:
        found = diagnosis.diagnose(repo, run, attempt, plan.directory / "logs", causes.with_own(ports.causes))
    except (M5Error, OSError) as error:
        _log.warning("the cause of the failure of run %s is unknown: %s", run, error)
        found = Diagnosis(cause=None)
    observed = {start.host: start.observed for start in ledger.node_starts(repo, run, attempt)}
    incident = Incident(
        run=run,
        attempt=attempt,
        time_s=repo.store.now(),
        outcome="failed",
        step=state.attempt_of(repo, run, attempt).last_step,
        reason=reason,
        cause=found.cause,
        host=found.host,
        environment=observed.get(found.host) if found.host is not None else next(iter(observed.values()), None),
    )
    try:
        return msgspec.structs.replace(incident, memory=memory.recall(repo, incident))
    except (M5Error, OSError) as error:
        _log.warning("cannot read earlier incidents: %s", error)
        return incident
