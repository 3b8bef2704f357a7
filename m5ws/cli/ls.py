"""`m5ws ls`."""

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.runs.listing import RunRow, SnapshotRow

_CHANGES = 4


@click.command("ls")
@click.option("--snapshots", "only", flag_value="snapshots", help="List snapshots only.")
@click.option("--runs", "only", flag_value="runs", help="List runs only.")
@click.option(
    "--where", "condition", type=names.Text(), metavar="CONDITION", help="List the runs that meet CONDITION, in SQL."
)
@output.limit_option("List the newest N snapshots and the newest N runs; 0 lists all.")
@output.json_command
def command(context: click.Context, only: str | None, condition: str | None, limit: int, as_json: bool) -> None:
    """List snapshots and runs.

    The newest come first by the store's clock, and replays below their originals. Runs have their last and lowest
    loss, and their name or the parameters that are not the same in all listed runs.

    CONDITION is a condition of SQLite over the columns id, name, user, host, state, created, age_s, step, total_steps,
    attempts, loss, lowest_loss, lowest_step, snapshot, reproduces, parent, sweep, verdict, why, notes, outcome (of
    notes), and one for each parameter: a config key, args.NAME or launch.FIELD. A name with a dot is in double quotes,
    a text in single quotes.

    \b
    Examples:
      m5ws ls --runs
      m5ws ls --where 'loss < 3 and "optimizer.lr" >= 3e-4'
      m5ws ls --where "state = 'failed' and created > datetime('now', '-2 days')"
    """
    from m5ws.outputs import kept_work
    from m5ws.runs import listing, run_table

    only = only if condition is None else "runs"
    workspace = names.workspace(context)
    repo = workspace.open_repository()
    with progress.Bar() as bar:
        snapshots = listing.list_snapshots(repo, bar, limit) if only != "runs" else listing.SnapshotList(rows=())
        runs = run_table.newest(repo, limit, bar, condition) if only != "snapshots" else run_table.RunTable(rows=())
    more = {"snapshots": snapshots.more, "runs": runs.more}
    if as_json:
        return output.print_json({"snapshots": snapshots.rows, "runs": runs.rows, "more": more})
    if snapshots.rows:
        output.echo(output.table(("SNAPSHOT", "WHEN", "COMMIT", "MESSAGE"), [_snapshot(row) for row in snapshots.rows]))
    if snapshots.rows and runs.rows:
        output.echo()
    if runs.rows:
        output.echo(_runs(runs.rows))
    _print_older(more)
    for work in kept_work.find(workspace.home, workspace.kept):
        output.print_note(f"work of removed run {work.run} is kept on this machine; `m5ws show {work.run}` lists it")
    if not snapshots.rows and not runs.rows:
        begin = "no snapshots and no runs: create them with `m5ws snapshot` and `m5ws run`"
        output.print_note(begin if condition is None else "no run meets the condition")
    return None


def _print_older(more: Mapping[str, bool]) -> None:
    if left := " and ".join(kind for kind, is_cut in more.items() if is_cut):
        output.print_note(f"older {left} are not listed; `--limit N` lists more, `--limit 0` all")


def _snapshot(row: "SnapshotRow") -> tuple[str, ...]:
    commit = "-" if row.commit is None else row.commit[:10] + ("+" if row.dirty else "")
    message = row.problem or row.message or ""
    if row.derived_from and not row.message:
        message = f"from {output.short(row.derived_from)}"
    return output.short(row.id), output.moment(row.created_s), commit, message.split("\n")[0]


def _runs(rows: "Sequence[RunRow]") -> str:
    heads = ("RUN", "AGE", "STARTED BY", "STATE", "STEP", "LOSS", "LOWEST", "SNAPSHOT", "NAME AND CHANGES")
    now_s, originals = time.time(), {row.id for row in rows if row.reproduces is None}
    return output.table(heads, [_run(row, now_s, below=row.reproduces in originals) for row in rows])


def _run(row: "RunRow", now_s: float, *, below: bool) -> tuple[str, ...]:
    step = f"{row.last_step}/{row.total_steps}" if row.total_steps else str(row.last_step)
    state = "damaged" if row.problem else row.standing + (", inexact" if row.inexact else "")
    age = output.duration(now_s - row.created_s) if row.created_s else "-"
    details = row.problem or ", ".join(_described(row))
    snapshot = output.short(row.snapshot or "-")
    losses = map(output.rounded, (row.loss, row.lowest_loss))
    creator = "@".join(filter(None, (row.user, (row.host or "").partition(".")[0]))) or "-"
    return "  " * below + row.id, age, creator, state, step, *losses, snapshot, details


def _described(row: "RunRow") -> list[str]:
    """Return the name of a run, its start and verdict, its changed parameters and its expectation."""
    words = [row.name] if row.name else []
    if row.reproduces:
        words.append(f"reproduces {row.reproduces}" + (f": {row.outcome}" if row.outcome else ""))
    elif row.parent:
        words.append(f"from {row.parent.run}@{row.parent.step}")
    if row.sweep:
        words.append(f"sweep {row.sweep}")
    # The name of a run of a sweep has its values already.
    named = re.findall(r"(\S+?)=", row.name.replace("-", "_")) if row.sweep and row.name else ()
    changes = [
        f"{name}={output.cut(value)}"
        for name, value in row.changes.items()
        if value is not None and re.sub(r"^args\.|^launch\.|.*:", "", name).replace("-", "_") not in named
    ]
    words += changes[:_CHANGES]
    words += [f"{len(changes) - _CHANGES} more"] if len(changes) > _CHANGES else []
    if row.why:
        words.append(f"why: {output.cut(row.why)}")
    return [*words, row.note_outcome] if row.note_outcome else words
