"""`m5ws cause`."""

import collections
import itertools
from typing import TYPE_CHECKING

import click

from m5ws.cli import logs
from m5ws.cli.parameters import names
from m5ws.cli.terminal import output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from m5ws.repository.repository import Repository
    from m5ws.supervision.causes import Cause

_LAST_BATCHES = 3


@click.command("cause")
@click.argument("run", type=names.Id(("run",)))
@click.option(
    "--attempt", type=click.IntRange(min=1), metavar="N", help="Name the cause of attempt N. [default: the newest]"
)
@output.json_option
@click.pass_context
def command(context: click.Context, run: str, attempt: int | None, as_json: bool) -> None:
    """Name the cause of a failure: its class, and the rank that it began on.

    Rules search the end of the logs of all ranks (see `m5ws logs`). The effect of a failure on other ranks, such as a
    collective that times out, is never the cause if a rule matches the failure itself. If no rule matches, the cause is
    unknown.

    \b
    Example:
      m5ws cause 7c1d
    """
    from m5ws.errors import NotFound
    from m5ws.repository.ledger import ledger
    from m5ws.supervision import causes

    workspace = names.workspace(context)
    repo = workspace.open_repository()
    run_id = names.find_id(repo, run, "run")
    known = ledger.attempts(repo, run_id)
    chosen = attempt or max(known, default=1)
    if attempt is not None and attempt not in known:
        raise NotFound(f"run {run_id} has no attempt {attempt}", hint=f"It has {len(known)}.")
    end = ledger.ended(repo, run_id, chosen) if chosen in known else None
    if end is not None and end.outcome == "finished":
        if as_json:
            return output.print_json(
                {"run": run_id, "attempt": chosen, "outcome": end.outcome, "cause": None, "host": None}
            )
        return output.echo(f"no failure: attempt {chosen} of run {run_id} finished")
    lines: dict[str, list[str]] = {}
    for name, new in logs.source_of(workspace, repo, run_id, chosen).read(last=True):
        lines.setdefault(name, []).extend(new)
    if not lines:
        raise NotFound(
            f"run {run_id} has no logs of attempt {chosen} on this machine, and none in the store",
            hint="Logs stay on the machine that started the run.",
        )
    failures = {str(rank): (time_s, host) for rank, time_s, host in _failures(repo, run_id, chosen)}
    times_s = {rank: time_s for rank, (time_s, _) in failures.items()}
    cause = causes.Classifier(causes.builtin()).find(lines, times_s)
    host = failures[cause.rank][1] if cause is not None and cause.rank in failures else None
    if as_json:
        outcome = None if end is None else end.outcome
        return output.print_json({"run": run_id, "attempt": chosen, "outcome": outcome, "cause": cause, "host": host})
    if cause is None:
        return output.echo(f"unknown: no rule matches the logs of attempt {chosen} of run {run_id}")
    return output.echo(*_describe(cause, host).split("\n"))


def _failures(repo: "Repository", run: str, attempt: int) -> "Iterator[tuple[int, float, str | None]]":
    """Yield each rank with a recorded failure, its time in seconds and its host, from the last batches of nodes."""
    from m5ws.records.ledger import RankEnded
    from m5ws.repository.ledger import ledger

    hosts = {start.node: start.host for start in ledger.node_starts(repo, run, attempt)}
    for node in ledger.nodes(repo, run, attempt):
        for batch in itertools.islice(ledger.backwards(repo, run, attempt, node), _LAST_BATCHES):
            for _, event in ledger.decode(batch):
                if isinstance(event, RankEnded) and event.failure is not None:
                    yield event.rank, event.time_s, hosts.get(node)


def _describe(cause: "Cause", host: str | None) -> str:
    log = f"rank {cause.rank}" if cause.rank.isdigit() else f"the {cause.rank}"
    place = f"line {cause.line} of the log of {log}{f', on {host}' if host else ''}"
    is_effect = cause.level == "cascade"
    counts = collections.Counter(cause.others.values())
    fields = {
        "cause": f"{cause.kind}: {cause.title}",
        "began": "unknown: no rule matches the failure before this effect" if is_effect else place,
        "seen": place if is_effect else None,
        "others": ", ".join(f"{kind} ({number})" for kind, number in counts.items()) or None,
        "owner": cause.owner,
        "restart": "may help" if cause.retry else "does not help",
        "advice": cause.advice,
    }
    return "\n".join([output.fields(fields), "", *(f"  {line}".rstrip() for line in cause.evidence)])
