"""`m5ws cause`."""

import collections
from pathlib import Path
from typing import TYPE_CHECKING

import click

from m5ws.cli import logs
from m5ws.cli.parameters import names
from m5ws.cli.terminal import output

if TYPE_CHECKING:
    from m5ws.records.cause import Cause
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace


@click.command("cause")
@click.argument("run", type=names.Id(("run",)))
@click.argument("right", metavar="[CLASS]", required=False)
@click.option(
    "--attempt", type=click.IntRange(min=1), metavar="N", help="Name the cause of attempt N. [default: the newest]"
)
@click.option("--wrong", is_flag=True, help="Write an anonymised case file with the right CLASS of this failure.")
@click.option(
    "-o", "--output", "target", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the case to FILE. [default: m5ws-case-RUN.json]",
)  # fmt: skip
@output.json_option
@click.pass_context
def command(
    context: click.Context,
    run: str,
    right: str | None,
    attempt: int | None,
    wrong: bool,
    target: Path | None,
    as_json: bool,
) -> None:
    """Name the cause of a failure: its class, and the rank that it began on.

    Rules search the end of the logs of all ranks (see `m5ws logs`): the rules of `[causes]` in m5ws.toml, then the
    rules of m5ws. The effect of a failure on other ranks, such as a collective that times out, is never the cause if a
    rule matches the failure itself. If no rule matches, the cause is unknown.

    --wrong writes a case file for the rules of a later version: the ends of all logs, without secrets, and with
    placeholders for the names of users, hosts, addresses and of paths below a home. CLASS is a class of these rules, or
    "unknown". Nothing is sent.

    \b
    Examples:
      m5ws cause 7c1d
      m5ws cause --wrong 7c1d disk-full
    """
    from m5ws.errors import UsageError
    from m5ws.repository.ledger import ledger
    from m5ws.supervision import causes, diagnosis

    if wrong != (right is not None) or (target is not None and not wrong):
        raise UsageError("--wrong, CLASS and --output belong together", hint="m5ws cause --wrong RUN CLASS [-o FILE]")
    workspace, repo, run_id = names.open_run(context, run)
    chosen = logs.choose_attempt(repo, run_id, attempt)
    folder = workspace.attempt_dir(run_id, chosen) / "logs"
    end = ledger.ended(repo, run_id, chosen) if ledger.attempts(repo, run_id) else None
    outcome = None if end is None else end.outcome
    has_failed = outcome != "finished"
    if right is not None and not has_failed:
        raise UsageError(f"no failure: attempt {chosen} of run {run_id} finished", hint="--wrong requires a failure.")
    if right is not None:
        case = target or Path(f"m5ws-case-{run_id}.json")
        return _write_case(workspace, repo, run_id, chosen, right, case)
    rules = causes.with_own(workspace.settings.causes)
    found = diagnosis.diagnose(repo, run_id, chosen, folder, rules) if has_failed else diagnosis.Diagnosis(cause=None)
    if as_json:
        shown = {"cause": found.cause, "host": found.host, "stacks": found.stacks, "nodes": found.nodes}
        return output.print_json({"run": run_id, "attempt": chosen, "outcome": outcome} | shown)
    if not has_failed:
        return output.echo(f"no failure: attempt {chosen} of run {run_id} finished")
    if found.cause is None:
        so_far = ", which has no end" if outcome is None else ""
        return output.echo(f"unknown: no rule matches attempt {chosen} of run {run_id}{so_far}")
    return output.echo(*_describe(found.cause, found.host).split("\n"))


def _describe(cause: "Cause", host: str | None) -> str:
    log = f"rank {cause.rank}" if cause.rank.isdigit() else f"the {cause.rank}"
    line = f"line {cause.line} of the log of {log}" if cause.line else log
    place = f"{line}{f', on {host}' if host else ''}{f', at {cause.place}' if cause.place else ''}"
    is_effect = cause.level == "cascade"
    unknown = "no rule matches the failure before this effect" if is_effect else "no rank differs from the rest"
    counts = collections.Counter(cause.others.values())
    fields = {
        "cause": f"{cause.kind}: {cause.title}",
        "began": f"unknown: {unknown}" if is_effect or not cause.rank else place,
        "seen": place if is_effect else None,
        "others": ", ".join(f"{kind} ({number})" for kind, number in counts.items()) or None,
        "owner": cause.owner,
        "restart": "may help" if cause.retry else "does not help",
        "advice": cause.advice,
    }
    return "\n".join([output.fields(fields), "", *(f"  {line}".rstrip() for line in cause.evidence)])


def _write_case(workspace: "Workspace", repo: "Repository", run: str, attempt: int, right: str, target: Path) -> None:
    """Write an anonymised case. Raises UsageError for a class that does not exist, or a file that does."""
    import os
    import socket

    import msgspec

    from m5ws import access
    from m5ws.errors import UsageError
    from m5ws.repository.references import runs
    from m5ws.supervision import cases, causes, diagnosis

    rules = causes.with_own(workspace.settings.causes)
    classes = [*sorted(rules), cases.UNKNOWN]
    if right not in classes:
        raise UsageError(f"no class of causes is named {right}", hint=f"The classes are {', '.join(classes)}.")
    if target.exists():
        raise UsageError(f"{target} exists", hint="Name another file with --output.")
    where = (repo, run, attempt, workspace.attempt_dir(run, attempt) / "logs")
    evidence, cause, record = diagnosis.collect(*where), diagnosis.diagnose(*where, rules).cause, runs.load(repo, run)
    case = cases.make(
        evidence.lines,
        evidence.recorded.ended_s,
        right,
        cases.UNKNOWN if cause is None else cause.kind,
        run=run,
        root=workspace.root,
        users=filter(None, (record.user, access.user_name(os.getuid()))),
        hosts=filter(None, (*evidence.recorded.hosts.values(), record.host, socket.gethostname())),
    )
    target.write_bytes(msgspec.json.format(msgspec.json.encode(case), indent=1) + b"\n")
    output.echo(
        f"{target}: the last lines of {len(case.logs)} logs, as {right} instead of {case.found}",
        "Secrets, users, hosts, addresses, and paths below the workspace and a home are replaced. Other names are not.",
        "Read the file before it is sent to anyone.",
    )
