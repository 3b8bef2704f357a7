"""Messages about runs for people: text, and the same facts as fields."""

from typing import Literal

import msgspec

from m5ws import secret_gate
from m5ws.records.failure import EndReason
from m5ws.records.incident import Incident
from m5ws.records.run import Run
from m5ws.wording.failures import describe_end
from m5ws.wording.incidents import describe_advice, describe_cause

Event = Literal["failed", "finished", "restarted", "test"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message. `time_s` is of this machine's clock. `command` prints more.

    `kind`, `rank`, `host`, `owner`, `retry` and `advice` are of the cause of a failure, None if it is unknown.
    """

    event: Event
    time_s: float
    title: str
    text: str
    run: str = ""
    name: str | None = None
    attempt: int = 0
    step: int | None = None
    why: str | None = None
    kind: str | None = None
    rank: str | None = None
    host: str | None = None
    owner: str | None = None
    retry: bool | None = None
    advice: str | None = None
    memory: tuple[str, ...] = ()
    command: str = ""


def describe(
    event: Event, run: Run, attempt: int, time_s: float, reason: EndReason | None, incident: Incident | None
) -> Message:
    """Return the message about an event of an attempt, with secrets masked."""
    cause = incident.cause if incident is not None else None
    step = incident.step if incident is not None else None
    why = describe_end(reason) if reason is not None else None
    command = f"m5ws {'cause' if event == 'failed' else 'show'} {run.id}"
    after = f", step {step}" if step is not None else ""
    lines = [why] if why is not None else []
    lines += [f"Cause: {describe_cause(incident)}"] if incident is not None else []
    lines += [describe_advice(cause)] if cause is not None else []
    lines += [*(incident.memory if incident is not None else ()), command]
    message = Message(
        event=event,
        time_s=time_s,
        title=f"{' '.join(filter(None, ('run', run.id, run.name)))} {event} (attempt {attempt}{after})",
        text="\n".join(lines),
        run=run.id,
        name=run.name,
        attempt=attempt,
        step=step,
        why=why,
        kind=cause.kind if cause is not None else None,
        rank=cause.rank if cause is not None else None,
        host=incident.host if incident is not None else None,
        owner=cause.owner if cause is not None else None,
        retry=cause.retry if cause is not None else None,
        advice=cause.advice if cause is not None else None,
        memory=incident.memory if incident is not None else (),
        command=command,
    )
    return secret_gate.masked(message)
