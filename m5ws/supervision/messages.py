"""Messages about runs for people: text, and the same facts as fields."""

import time
from typing import Literal

import msgspec

from m5ws import secret_gate
from m5ws.records.failure import EndReason
from m5ws.records.incident import Incident
from m5ws.records.job import Job
from m5ws.records.run import Run
from m5ws.wording.failures import describe_end
from m5ws.wording.incidents import describe_advice, describe_cause, describe_exclusion

Event = Literal["failed", "finished", "restarted", "test"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message. `time_s` is of this machine's clock. `why` is the end of the attempt, and `command` prints more."""

    event: Event
    time_s: float
    title: str
    text: str
    run: str = ""
    name: str | None = None
    attempt: int = 0
    why: str | None = None
    incident: Incident | None = None
    command: str = ""


def describe(
    event: Event,
    run: Run,
    attempt: int,
    reason: EndReason | None,
    incident: Incident | None,
    follows: str | None = None,
    job: Job | None = None,
) -> Message:
    """Return the message about an event of an attempt, with secrets masked. `follows`: m5ws begins the next attempt.

    `job` is the job that ran it.
    """
    why = describe_end(reason) if reason is not None else None
    command = f"m5ws {'cause' if event == 'failed' else 'show'} {run.id}"
    after, lines = "", [why] if why is not None else []
    if incident is not None:
        after = f", step {incident.step}"
        lines.append(f"Cause: {describe_cause(incident)}")
        lines += [describe_advice(incident.cause)] if incident.cause is not None else []
        lines += filter(None, [describe_exclusion(incident, job)] if job is not None else [])
        lines += incident.memory
    if follows is not None:
        lines.append(f"m5ws begins the next attempt: {follows}.")
    message = Message(
        event=event,
        time_s=time.time(),
        title=f"{' '.join(filter(None, ('run', run.id, run.name)))} {event} (attempt {attempt}{after})",
        text="\n".join([*lines, command]),
        run=run.id,
        name=run.name,
        attempt=attempt,
        why=why,
        incident=incident,
        command=command,
    )
    return secret_gate.masked(message)
