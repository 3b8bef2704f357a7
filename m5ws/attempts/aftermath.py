"""After the end of an attempt: its failure in the tracker, and messages to people. No error here fails a run."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from m5ws.agent import untracked
from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.ports import Ports
from m5ws.attempts import failed_end
from m5ws.attempts.results import AttemptResult
from m5ws.records.run import Run
from m5ws.supervision import messages
from m5ws.supervision.messages import Event, Message

if TYPE_CHECKING:
    from m5ws.supervision.notify import Mark

_LIMIT_S = 10.0
"""The longest time for messages. The other messages are sent later."""
_EVENTS: dict[str, Event] = {"finished": "finished", "failed": "failed", "unsaved": "failed"}
_log = logging.getLogger(__name__)


def conclude(ports: Ports, plan: AttemptPlan, result: AttemptResult) -> None:
    """Show the incident of a failed attempt in the tracker, and send the message about the end of an attempt.

    Messages of earlier attempts that wait on this machine are sent too.
    """
    if result.incident is not None and ports.tracker is not None:
        home = plan.directory.parents[2]
        untracked.show_verdict(ports.tracker, home, plan.run.id, is_followed=result.untracked is not None)
    event = _EVENTS.get(result.outcome) or ("restarted" if result.again else None)
    follows = result.restart.reason if result.restart is not None and result.restart.again else None
    end = (plan.run, plan.attempt, result.reason, result.incident)
    _send(ports, event and messages.describe(event, *end, follows, ports.job))


def make_up(ports: Ports, run: Run, attempt: int, directory: Path) -> None:
    """Publish the incident of an earlier attempt whose leader was stopped before it could, and send its message.

    `directory` is the directory of the attempt, if it was on this machine.
    """
    incident = failed_end.record(ports.repo, ports.causes, run, attempt, directory / "logs")
    if incident is not None:
        # `m5ws watch --unattended` may have reported the attempt as silent.
        _send(ports, messages.describe("failed", run, attempt, incident.reason, incident, job=ports.job), ("silent",))


def _send(ports: Ports, message: Message | None, others: "Sequence[Mark]" = ()) -> None:
    """Send a message, and the messages that wait."""
    try:
        if ports.notifier is not None and message is not None:
            ports.notifier.add(message, others=others)
        if ports.notifier is not None:
            ports.notifier.deliver(_LIMIT_S)
    except OSError as error:
        _log.warning("cannot send the messages about runs of this machine: %s", error)
