"""`m5ws watch --unattended`: one look at runs, for cron and systemd timers.

A run is dead if its nodes died without a word: its newest attempt goes on, and its ledger gets no batch for a while, by
the clock of the store. Or its leader was killed, and another command has recorded that end.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from m5ws.cli.terminal import output
from m5ws.errors import UsageError
from m5ws.records.failure import EndReason

if TYPE_CHECKING:
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace

_LIMIT_S = 10.0
_CONCLUSION_S = 300.0
"""Time of a leader after the end of an attempt to record the failure by itself."""
_WELL = ("created", "running", "finished")


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run. `silent_s`: the age of the newest batch of a run that is running.

    `ended_s`: the time at which its newest attempt ended. `is_waiting`: its job begins the next attempt.
    """

    run: str
    standing: str
    attempt: int
    step: int
    silent_s: float | None
    ended_s: float | None
    is_dead: bool
    is_waiting: bool
    reason: EndReason | None

    @property
    def status(self) -> int:
        """The exit status for the run: 0 if it goes on, waits or has finished, else 1."""
        return 0 if self.is_waiting or (self.standing in _WELL and not self.is_dead) else 1

    def __str__(self) -> str:
        age = f", last event {output.duration(self.silent_s)} ago" if self.silent_s is not None else ""
        more = " (dead)" if self.is_dead else ", waits for its job" if self.is_waiting else ""
        return f"run {self.run} {self.standing}, step {self.step}{age}{more}"


def look(
    workspace: "Workspace", repo: "Repository", runs: Sequence[str], limit_s: float, ping: str | None
) -> list[Sign]:
    """Return the state of each run. If all runs are well, the address is fetched.

    A run that is dead or has failed gets a message, once, and a failed attempt its incident.
    """
    if ping is not None and not ping.startswith(("https://", "http://")):
        raise UsageError(f"--ping {ping} is no http(s) URL")
    signs = [_look(workspace, repo, run, limit_s) for run in runs]
    for sign in signs:
        try:
            if sign.status:
                _report(workspace, repo, sign)
        except OSError as error:
            output.warn(f"warning: cannot send the message about run {sign.run}: {error}")
    if ping is not None and not any(sign.status for sign in signs):
        _fetch(ping)
    return signs


def _look(workspace: "Workspace", repo: "Repository", run: str, limit_s: float) -> Sign:
    from m5ws.repository.ledger import ledger
    from m5ws.runs import liveness, state

    found = state.load_newest(repo, run)
    attempt = found.newest.attempt if found.newest is not None else 0
    is_running = found.standing == "running"
    silent_s = repo.store.now() - ledger.newest_s(repo, run, attempt) if is_running else None
    is_waiting = found.standing not in _WELL and not liveness.look(workspace.settings, repo, found)[0]
    return Sign(
        run=run,
        standing=found.standing,
        attempt=attempt,
        step=found.last_step,
        silent_s=silent_s,
        ended_s=found.newest.ended_s if found.newest is not None else None,
        is_dead=not is_waiting and liveness.is_dead(found, silent_s, limit_s),
        is_waiting=is_waiting,
        reason=found.newest.reason if found.newest is not None else None,
    )


def _report(workspace: "Workspace", repo: "Repository", sign: Sign) -> None:
    """Send the message about a silent attempt, or record a failed attempt with its message, once for each attempt."""
    from m5ws.attempts import aftermath
    from m5ws.repository.references import runs
    from m5ws.supervision import messages

    run, ports, notifier = runs.load(repo, sign.run), workspace.ports(repo), workspace.notifier()
    if sign.silent_s is not None:
        problem = f"no event since {output.duration(sign.silent_s)}: its nodes may be dead or cut off"
        reason = EndReason(kind="node lost", problem=problem)
        notifier.add(messages.describe("failed", run, sign.attempt, reason, None), "silent", ("failed",))
    elif sign.attempt and (sign.ended_s is None or repo.store.now() - sign.ended_s > _CONCLUSION_S):
        aftermath.make_up(ports, run, sign.attempt, workspace.attempt_dir(sign.run, sign.attempt))
    notifier.deliver(_LIMIT_S)


def _fetch(address: str) -> None:
    """Fetch an address. A failure is a warning: the service at the address misses the request, and alerts."""
    import http.client
    import urllib.request

    try:
        with urllib.request.urlopen(address, timeout=_LIMIT_S) as answer:  # noqa: S310  http and https alone get here
            answer.read(1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        output.warn(f"warning: --ping was not answered: {error}")
