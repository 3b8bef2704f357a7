"""The incident of a failed attempt: its cause, and earlier incidents of the same kind. No error here fails a run.

The leader publishes it after the end of the attempt. If the leader was stopped before, the next command that continues
or watches the run does so.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from m5ws.errors import M5Error
from m5ws.records.cause import Rule
from m5ws.records.failure import EndReason
from m5ws.records.incident import Incident
from m5ws.records.run import Run
from m5ws.repository.ledger import ledger
from m5ws.repository.references import incidents
from m5ws.repository.repository import Repository
from m5ws.runs import state
from m5ws.supervision import causes, diagnosis, memory
from m5ws.supervision.diagnosis import Diagnosis

_log = logging.getLogger(__name__)


def record(repo: Repository, own: Mapping[str, Rule], run: Run, attempt: int, logs: Path) -> Incident | None:
    """Publish the incident of an attempt whose failed end is in the ledger. `own` are the rules of the workspace.

    None for any other attempt, for an attempt of a replay, if the attempt has an incident, and if the store does not
    answer.
    """
    try:
        end = ledger.ended(repo, run.id, attempt) if run.purpose == "train" else None
        if end is None or end.outcome != "failed" or incidents.load(repo, run.id, attempt) is not None:
            return None
        return incidents.publish(repo, _describe(repo, causes.with_own(own), run.id, attempt, logs, end.reason))
    except (M5Error, OSError) as error:
        _log.warning("cannot record the failure of attempt %d of run %s: %s", attempt, run.id, error)
        return None


def _describe(
    repo: Repository, rules: Mapping[str, Rule], run: str, attempt: int, logs: Path, reason: EndReason | None
) -> Incident:
    """Return the incident of a failed attempt. Raises M5Error, OSError if the store does not answer."""
    try:
        found = diagnosis.diagnose(repo, run, attempt, logs, rules)
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
