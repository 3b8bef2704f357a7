"""Restarts after a failure: the decision from the ledger and the incidents of a run, and the next attempt.

An attempt that m5ws began by itself has a notice "restart". The attempts of a run since the last start by a user
decide. Errors of the store never fail a run: without a decision, nothing is restarted.
"""

import logging
from pathlib import Path

import msgspec

from m5ws.agent import places
from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.ports import Ports
from m5ws.attempts import planning
from m5ws.errors import M5Error
from m5ws.records.failure import EndReason
from m5ws.records.incident import Incident
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints, incidents, outputs
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import local_copies
from m5ws.runs import state
from m5ws.runs.state import AttemptState
from m5ws.supervision import restarts
from m5ws.supervision.restarts import Cause, Decision, PastAttempt
from m5ws.wording.failures import describe_end

_UNANSWERED = Decision(again=False, reason="the store does not answer, so the attempts of the run are unknown")
_log = logging.getLogger(__name__)


def decide(ports: Ports, plan: AttemptPlan) -> Decision | None:
    """Return the decision about a restart after a failed attempt; None if it has no restarts.

    Another command may have published the incident of the attempt.
    """
    if not (ports.restart.max and plan.context.goes_on) or (ports.job is not None and ports.job.command):
        return None
    try:
        if incidents.load(ports.repo, plan.run.id, plan.attempt) is None:
            return _UNANSWERED
        return restarts.decide(_load_past(ports, plan), ports.restart)
    except (M5Error, OSError) as error:
        _log.warning("no decision about a restart of run %s: %s", plan.run.id, error)
        return _UNANSWERED


def plan_next(ports: Ports, plan: AttemptPlan, decision: Decision) -> AttemptPlan | None:
    """Return the attempt after a failed attempt, on this machine. None if it cannot be planned."""
    repo, context = ports.repo, plan.context
    try:
        run = planning.resumed(repo, plan.run.id)
        local_copies.publish_left(repo, run.id, context.local)
        following = planning.plan(
            repo,
            run,
            plan.directory.parents[2],
            Path(context.author_dir),
            ports.environment,
            ports.tracker,
            context.saving,
            python=ports.python,
            place=plan.place,
            from_scratch=plan.from_scratch and plan.attempt not in _with_results(repo, run.id),
        )
        failed = _describe(state.attempt_of(repo, run.id, plan.attempt))
    except (M5Error, OSError) as error:
        _log.warning("run %s is not restarted: %s", plan.run.id, error)
        return None
    return _with_reason(following, f"{failed}; {decision.reason}")


def _with_results(repo: Repository, run: str) -> set[int]:
    """Return the attempts that have published a checkpoint or output files."""
    saved = map(checkpoints.attempt_of, checkpoints.names(repo, run))
    return {*saved, *map(outputs.attempt_of, outputs.names(repo, run))}


def mark(ports: Ports, plan: AttemptPlan) -> AttemptPlan:
    """Return the plan of an attempt with the reason of the restart, if its job has begun the attempt before too."""
    job, earlier = plan.place.job, plan.attempt - 1
    if not ports.restart.max or job is None or earlier not in ledger.attempts(ports.repo, plan.run.id):
        return plan
    try:
        started = ledger.started(ports.repo, plan.run.id, earlier)
        ended = _describe(state.attempt_of(ports.repo, plan.run.id, earlier))
    except (M5Error, OSError) as error:
        _log.warning("attempt %d of run %s cannot be read: %s", earlier, plan.run.id, error)
        return plan
    if started is None or started.job is None or places.without_restart(started.job) != places.without_restart(job):
        return plan
    return _with_reason(plan, f"{ended}; job {places.without_restart(job)} started again")


def _with_reason(plan: AttemptPlan, reason: str) -> AttemptPlan:
    step = checkpoints.step_of(plan.resume) if plan.resume is not None else 0
    return msgspec.structs.replace(plan, restart=f"{reason} from step {step}")


def _describe(own: AttemptState) -> str:
    """Return the end of an attempt."""
    why = f": {describe_end(own.reason)}" if own.reason is not None else ""
    return f"attempt {own.attempt} {'has no end' if own.standing == 'running' else own.standing}{why}"


def _load_past(ports: Ports, plan: AttemptPlan) -> list[PastAttempt]:
    """Return the newest attempts of a run since the last start by a user, oldest first, as far as they decide."""
    repo, run, past = ports.repo, plan.run.id, list[PastAttempt]()
    failures = restarts.enough_failures(ports.restart)
    for number in reversed(ledger.attempts(repo, run)):
        own = state.attempt_of(repo, run, number)
        failure = own.reason if own.standing == "failed" else None
        begun = checkpoints.step_of(own.resume) if own.resume is not None else 0
        attempt = PastAttempt(
            end=own.reason.kind if own.reason is not None else own.standing,
            cause=_name_cause(incidents.load(repo, run, number), failure) if failure is not None else None,
            advanced=any(checkpoint.step > begun for checkpoint in own.checkpoints),
        )
        past.append(attempt)
        failures -= failure is not None
        if not failures or not any(notice.kind == "restart" for notice in own.notices):
            break
    return past[::-1]


def _name_cause(incident: Incident | None, reason: EndReason) -> Cause:
    """Return the cause of a failed attempt. An unknown cause has the place or the rank of the failure as its name.

    A dead rank explains the effects on other ranks, so its cause is unknown if only effects are in the logs.
    """
    if reason.kind == "node lost":
        return Cause(name=reason.kind, owner="infrastructure", retry=True)
    found = incident.cause if incident is not None else None
    if found is not None and not (found.level == "cascade" and reason.dead):
        return Cause(name=found.kind, owner=found.owner, retry=found.retry)
    return Cause(name=f"unknown, {_find_place(reason)}", owner="user", retry=True)


def _find_place(reason: EndReason) -> str:
    """Return the place of a failure: the innermost frame of an error, or the first dead rank."""
    if reason.dead:
        rank = min(map(int, reason.dead))
        return f"rank {rank} with status {reason.dead[str(rank)]}"
    if reason.failure is not None:
        return reason.failure.place or f"rank {reason.rank or 0}"
    return f"status {reason.status}"
