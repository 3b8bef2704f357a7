"""After the end of an attempt: the record of an incident, and messages to people. No error here fails a run."""

import logging

import msgspec

from m5ws.agent import untracked
from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.ports import Ports
from m5ws.attempts.leader import AttemptResult
from m5ws.errors import M5Error
from m5ws.records.incident import Incident
from m5ws.repository.ledger import ledger
from m5ws.repository.references import incidents
from m5ws.runs import state
from m5ws.supervision import causes, diagnosis, memory, messages
from m5ws.supervision.diagnosis import Diagnosis
from m5ws.supervision.messages import Event

_LIMIT_S = 10.0
"""The longest time for messages. The other messages are sent later."""
_EVENTS: dict[str, Event] = {"finished": "finished", "failed": "failed", "unsaved": "failed"}
_log = logging.getLogger(__name__)


def conclude(ports: Ports, plan: AttemptPlan, result: AttemptResult) -> Incident | None:
    """Record the incident of a failed attempt, send the message about the end of an attempt, and return the incident.

    Messages of earlier attempts that wait on this machine are sent too.
    """
    incident = _record(ports, plan, result) if result.outcome == "failed" else None
    is_restarted = result.again or (result.restart is not None and result.restart.again)
    event = "restarted" if is_restarted else _EVENTS.get(result.outcome)
    try:
        if ports.notifier is not None and event is not None and ports.notifier.is_wanted(event):
            message = messages.describe(event, plan.run, plan.attempt, result.reason, incident)
            ports.notifier.add(message)
        if ports.notifier is not None:
            ports.notifier.deliver(_LIMIT_S)
    except OSError as error:
        _log.warning("cannot send messages about run %s: %s", plan.run.id, error)
    return incident


def _record(ports: Ports, plan: AttemptPlan, result: AttemptResult) -> Incident | None:
    """Publish the incident of a failed attempt, and show it in the tracker. None if the store does not answer."""
    run = plan.run.id
    try:
        incident = incidents.publish(ports.repo, _describe(ports, plan, result))
    except (M5Error, OSError) as error:
        _log.warning("cannot record the failure of attempt %d of run %s: %s", plan.attempt, run, error)
        return None
    if ports.tracker is not None:
        home = plan.directory.parents[2]
        untracked.show_verdict(ports.tracker, home, run, is_followed=result.untracked is not None)
    return incident


def _describe(ports: Ports, plan: AttemptPlan, result: AttemptResult) -> Incident:
    """Return the incident of a failed attempt. Raises M5Error, OSError if the store does not answer."""
    repo, run, attempt = ports.repo, plan.run.id, plan.attempt
    try:
        found = diagnosis.diagnose(repo, run, attempt, plan.directory / "logs", causes.with_own(ports.causes))
    except M5Error as error:
        _log.warning("the cause of the failure of run %s is unknown: %s", run, error)
        found = Diagnosis(cause=None)
    observed = {start.host: start.observed for start in ledger.node_starts(repo, run, attempt)}
    incident = Incident(
        run=run,
        attempt=attempt,
        time_s=repo.store.now(),
        outcome=result.outcome,
        step=state.attempt_of(repo, run, attempt).last_step,
        reason=result.reason,
        cause=found.cause,
        host=found.host,
        environment=observed.get(found.host) if found.host is not None else next(iter(observed.values()), None),
    )
    try:
        return msgspec.structs.replace(incident, memory=memory.recall(repo, incident))
    except M5Error as error:
        _log.warning("cannot read earlier incidents: %s", error)
        return incident
