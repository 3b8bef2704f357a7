"""`m5ws cause`."""

import collections
from typing import TYPE_CHECKING

import click

from m5ws.cli import logs
from m5ws.cli.parameters import names
from m5ws.cli.terminal import output

if TYPE_CHECKING:
    from m5ws.supervision.causes import Cause


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
    from m5ws.repository.ledger import ledger
    from m5ws.supervision import causes, diagnosis

    workspace = names.workspace(context)
    repo = workspace.open_repository()
    run_id = names.find_id(repo, run, "run")
    chosen = logs.choose_attempt(repo, run_id, attempt)
    end = ledger.ended(repo, run_id, chosen) if ledger.attempts(repo, run_id) else None
    if end is not None and end.outcome == "finished":
        if as_json:
            return output.print_json(
                {"run": run_id, "attempt": chosen, "outcome": end.outcome, "cause": None, "host": None}
            )
        return output.echo(f"no failure: attempt {chosen} of run {run_id} finished")
    folder = workspace.attempt_dir(run_id, chosen) / "logs"
    found = diagnosis.diagnose(repo, run_id, chosen, folder, causes.builtin())
    if as_json:
        outcome = None if end is None else end.outcome
        return output.print_json(
            {"run": run_id, "attempt": chosen, "outcome": outcome, "cause": found.cause, "host": found.host}
        )
    if found.cause is None:
        return output.echo(f"unknown: no rule matches the logs of attempt {chosen} of run {run_id}")
    return output.echo(*_describe(found.cause, found.host).split("\n"))


def _describe(cause: "Cause", host: str | None) -> str:
    log = f"rank {cause.rank}" if cause.rank.isdigit() else f"the {cause.rank}"
    line = f"line {cause.line} of the log of {log}" if cause.line else f"the recorded failure of {log}"
    place = f"{line}{f', on {host}' if host else ''}"
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
