"""`m5ws watch --unattended`: one look at runs, for cron and systemd timers."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from m5ws.cli.terminal import output
from m5ws.errors import UsageError

if TYPE_CHECKING:
    from m5ws.repository.repository import Repository
    from m5ws.runs.silence import Sign
    from m5ws.workspace import Workspace

_LIMIT_S = 10.0
_WELL = ("created", "running", "finished")
_SEEN = "reported-dead"


def refuse_address(ping: str | None) -> None:
    """Raise UsageError unless an address can be fetched."""
    if ping is not None and not ping.startswith(("https://", "http://")):
        raise UsageError(f"--ping {ping} is no http(s) URL")


def look(
    workspace: "Workspace", repo: "Repository", runs: Sequence[str], limit_s: float, ping: str | None
) -> "list[Sign]":
    """Return the state of each run. A dead run gets a message, once. If all runs are well, the address is fetched."""
    signs = [_look(workspace, repo, run, limit_s) for run in runs]
    for sign in signs:
        if sign.is_dead:
            _report(workspace, repo, sign)
    if ping is not None and not any(map(status, signs)):
        _fetch(ping)
    return signs


def status(sign: "Sign") -> int:
    """Return the exit status for a run: 0 if it goes on, waits or has finished, else 1."""
    return 0 if sign.is_waiting or (sign.standing in _WELL and not sign.is_dead) else 1


def describe(sign: "Sign", limit_s: float) -> str:
    """Return the state of a run in one line."""
    age = f", last event {output.duration(sign.silent_s)} ago" if sign.silent_s is not None else ""
    dead = f" (dead: the limit is {output.duration(limit_s)})" if sign.is_dead and sign.silent_s is not None else ""
    waits = ", waits for its job" if sign.is_waiting else ""
    return f"run {sign.run} {sign.standing}, step {sign.step}{age}{dead}{waits}"


def _look(workspace: "Workspace", repo: "Repository", run: str, limit_s: float) -> "Sign":
    """Return the state of a run. A run whose job starts it again is not dead."""
    import msgspec

    from m5ws.cli import wait
    from m5ws.runs import silence, state

    sign = silence.look(repo, run, limit_s)
    if sign.standing in _WELL or wait.has_ended(workspace, repo, run, state.load_newest(repo, run)):
        return sign
    return msgspec.structs.replace(sign, is_waiting=True, is_dead=False)


def _report(workspace: "Workspace", repo: "Repository", sign: "Sign") -> None:
    """Send the message about a dead attempt, once for each attempt."""
    from m5ws.records.failure import EndReason
    from m5ws.repository.references import runs
    from m5ws.supervision import messages

    notifier, folder = workspace.notifier(), workspace.home / "notify"
    if not notifier.is_wanted("failed"):
        return
    seen = folder / f"{_SEEN}-{sign.run}-{sign.attempt:04d}"
    if not seen.exists():
        problem = f"no event since {output.duration(sign.silent_s or 0.0)}: its nodes may be dead or cut off"
        reason = sign.reason or EndReason(kind="node lost", problem=problem)
        message = messages.describe("failed", runs.load(repo, sign.run), sign.attempt, time.time(), reason, None)
        notifier.add(message)
        seen.touch()
    notifier.deliver(_LIMIT_S)


def _fetch(address: str) -> None:
    """Fetch an address. A failure is a warning: the service at the address misses the request, and alerts."""
    import urllib.request
    from urllib.error import URLError

    try:
        with urllib.request.urlopen(address, timeout=_LIMIT_S) as answer:  # noqa: S310  http and https alone get here
            answer.read(1)
    except (URLError, OSError) as error:
        output.warn(f"warning: --ping was not answered: {error}")
