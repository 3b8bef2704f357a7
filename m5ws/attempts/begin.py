"""The start of an attempt: its work directory, its input files, and the event that fences earlier attempts."""

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.ports import Ports
from m5ws.environment import attempt_environments, drift
from m5ws.environment.nccl import rules
from m5ws.errors import Fenced, M5Error, ObjectExists
from m5ws.outputs import unrecorded
from m5ws.records import codec
from m5ws.records.environment import Observed
from m5ws.records.failure import EndReason
from m5ws.records.ledger import NODE, AttemptEnded, AttemptStarted, NodeStarted, Notice
from m5ws.records.run import Run
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.spool import SpoolWriter
from m5ws.repository.references import notes, parameters, run_index, runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.wording.changes import describe


def refuse_stale(repo: Repository, plan: AttemptPlan) -> None:
    """Raise Fenced if the attempt has begun after it was planned: its number and checkpoint are taken."""
    if plan.attempt in ledger.attempts(repo, plan.run.id):
        raise _fenced(plan)


def _fenced(plan: AttemptPlan) -> Fenced:
    return Fenced(f"attempt {plan.attempt} of run {plan.run.id} has begun elsewhere", hint="Try again.")


def _publish_run(ports: Ports, run: Run) -> None:
    """Publish a new run, signed. Raises ObjectExists if the store has another run with this id."""
    repo = ports.repo
    try:
        runs.publish(repo, ports.sign(run))
    except ObjectExists:
        # A kill came between the run of a sweep and its first attempt.
        if runs.load(repo, run.id) != run:
            raise
        run_index.write_created(repo, run)


@contextmanager
def ended(spool: SpoolWriter) -> Iterator[None]:
    """Write the end of the attempt if an error or Ctrl-C ends the block, which is before its script begins.

    The store may have the start of the attempt. Then the next m5ws command here delivers the end.
    """
    try:
        yield
    except (KeyboardInterrupt, M5Error, OSError) as error:
        spool.append(_end(error))
        raise


def _end(error: BaseException) -> AttemptEnded:
    if isinstance(error, KeyboardInterrupt):
        stopped = EndReason(kind="stopped", signal=str(error) or signal.SIGINT.name)
        return AttemptEnded(time_s=time.time(), outcome="interrupted", exit_code=130, reason=stopped, heads={})
    problem = EndReason(kind="not launched", problem=str(error))
    return AttemptEnded(time_s=time.time(), outcome="failed", exit_code=1, reason=problem, heads={})


def publish(ports: Ports, plan: AttemptPlan, observed: Observed, spool: SpoolWriter) -> None:
    """Publish the run if it is new, the event that begins the attempt and fences all earlier attempts, and its node."""
    repo = ports.repo
    if plan.attempt == 1:
        _publish_run(ports, plan.run)
        if plan.why is not None:
            notes.publish(repo, plan.why)
    started = AttemptStarted(
        time_s=time.time(),
        attempt=plan.attempt,
        host=socket.gethostname(),
        nodes=plan.place.nodes,
        job=plan.place.job,
        job_name=ports.job.name if ports.job is not None else None,
        inherits=plan.inherits,
        resume=plan.resume,
    )
    declared = snapshots.load(repo, plan.run.snapshot).declared
    spool.append(started)
    writer = ledger.ChainWriter(repo, plan.run.id, plan.attempt, is_new=True)
    try:
        # From here on, only the listed checkpoints of earlier attempts are valid.
        writer.append({NODE: [codec.encode(started)]})
    except Fenced as error:
        raise _fenced(plan) from error
    values = parameters.ParameterReader(repo).of_run(plan.run)
    run_index.write(repo, runs.load(repo, plan.run.id), begun=plan.attempt, parameters=values)
    put = partial(repo.objects.put_record, observed)
    node = NodeStarted(time_s=time.time(), node=0, host=started.host, observed=put())
    spool.append(node)
    writer.append({NODE: [codec.encode(node)]}, repair=put)
    texts = [describe(change) for change in (*drift.unmet(declared, observed), *drift.conflicts(observed))]
    if drift.is_unverified(declared, observed):
        source = observed.facts.get("container.image.source")
        texts.append(f"the runtime does not state the declared image {declared.image}. Its source is {source}")
    for text in texts:
        spool.append(Notice(time_s=time.time(), kind="environment", message=text))
    for rule in rules.matching(observed):
        spool.append(Notice(time_s=time.time(), kind="network", message=rule.describe(observed.facts)))
    if plan.restart is not None:
        spool.append(Notice(time_s=time.time(), kind="restart", message=plan.restart))
    if (message := attempt_environments.notice(repo, plan.run.id, plan.attempt, observed)) is not None:
        spool.append(Notice(time_s=time.time(), kind="other-environment", message=message))
    if plan.attempt > 1:
        # For attempts that were killed on other machines. The attempts of this machine are finished already.
        for event in unrecorded.of_earlier(repo, plan.run.id, plan.attempt):
            spool.append(event)
