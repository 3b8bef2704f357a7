"""`m5ws gc`."""

import re
from typing import TYPE_CHECKING

import click

from m5ws.cli.parameters import names
from m5ws.cli.terminal import output, progress

if TYPE_CHECKING:
    from m5ws.agent.work_files import RemovedFiles
    from m5ws.records.gc import GcPlan, GcResult
    from m5ws.repository.gc.gc import DeletionPlan
    from m5ws.repository.repository import Repository
    from m5ws.workspace import Workspace

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


class Duration(click.ParamType[float]):
    """A number and a unit (`30d`, `24h`, `90m`, `0s`), converted to seconds, at least `least_s`."""

    name = "duration"

    def __init__(self, least_s: float = 0.0) -> None:
        self._least_s = least_s

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+)([smhdw])", value)
        if match is None:
            self.fail(f"{value!r} is not a duration: write a number and s, m, h, d or w, such as 30d", param, ctx)
        if (seconds := int(match[1]) * _UNITS[match[2]]) < self._least_s:
            self.fail(f"{value!r} is less than {self._least_s:.0f}s", param, ctx)
        return seconds


@click.command("gc")
@click.option("--dry-run", is_flag=True, help="Print the plan; publish and delete nothing.")
@click.option(
    "--older-than",
    type=Duration(),
    default="30d",
    metavar="AGE",
    show_default=True,
    help="Minimum age of an object in a plan, by the store's clock.",
)
@click.option(
    "--grace",
    type=Duration(),
    default="24h",
    metavar="TIME",
    show_default=True,
    help="Minimum time between a plan and its execution.",
)
@click.option("--execute", "wanted", metavar="PLAN", help="Execute this plan, and plan nothing new.")
@click.option("--take-over", is_flag=True, help="With --execute: continue a plan of another gc, which must have ended.")
@output.json_command
def command(
    context: click.Context,
    dry_run: bool,
    older_than: float,
    grace: float,
    wanted: str | None,
    take_over: bool,
    as_json: bool,
) -> None:
    """Delete unneeded objects: plan first, delete after a grace period.

    The first call publishes a plan and deletes nothing. A later call, after the grace period, checks the plan again
    and deletes the objects that are still not needed. All snapshots and runs are kept. The rules of [retention] in
    m5ws.toml decide which checkpoints are deleted. Copies of output files are deleted if there are newer copies. Other
    m5ws commands may run at the same time. To continue an interrupted gc, repeat the command.

    Files in work directories of this workspace are removed at once if the store has them, and if the run ended longer
    ago than --older-than. Others stay.

    \b
    Example:
      m5ws gc --dry-run
    """
    from m5ws.agent import work_files

    if take_over and not wanted:
        raise click.UsageError("--take-over requires --execute PLAN", context)
    if dry_run and wanted:
        raise click.UsageError("--dry-run cannot be combined with --execute", context)
    workspace = names.workspace(context)
    repo = workspace.repository() if dry_run else workspace.open_repository()
    work = work_files.remove_old(repo, workspace.home, older_than, dry_run=dry_run)
    if not as_json and work.files:
        verb = "can be removed from" if dry_run else "were removed from"
        output.echo(f"{work.files:,} files ({output.size(work.size_bytes)}), which are stored, {verb} work directories")
    if not dry_run and _went_on(workspace, repo, work, grace, wanted, take_over, as_json):
        return
    planned = _plan(workspace, repo, older_than, dry_run)
    if as_json:
        state = "planned" if planned.id else "nothing"
        output.print_json({"plan": planned.id, "state": state, "would": planned.plan, "work": work})
    else:
        output.echo(_planned(planned, grace))


def _plan(workspace: "Workspace", repo: "Repository", older_than: float, dry_run: bool) -> "DeletionPlan":
    from m5ws.records.gc import RetentionRules
    from m5ws.repository import reindex
    from m5ws.repository.gc import gc

    rules = RetentionRules(last=workspace.settings.retention.last, every=workspace.settings.retention.every)
    with progress.Bar() as bar:
        if not dry_run:
            reindex.fill(repo, bar)
        return gc.plan(repo, rules, older_than, dry_run=dry_run, progress=bar)


def _went_on(
    workspace: "Workspace",
    repo: "Repository",
    work: "RemovedFiles",
    grace: float,
    wanted: str | None,
    take_over: bool,
    as_json: bool,
) -> bool:
    """Execute a plan that is due and print its result. Return True if there was an unfinished plan."""
    from m5ws.repository.gc import execute

    name = execute.resolve(repo, wanted) if wanted else None
    with execute.lock_gc(workspace.prepare()) as holder, progress.Bar() as bar:
        if name is None:
            due = execute.due(repo, grace)
            if due is None:
                return False
            if due.wait_s > 0:
                _print_waiting(due.plan, due.wait_s, work, as_json)
                return True
            name = due.plan
        done = execute.execute(repo, name, holder, grace_s=grace, take_over=take_over, progress=bar)
        execute.clear(repo, name)
    _print_done(name, done, work, as_json)
    return True


def _print_waiting(plan: str, wait_s: float, work: "RemovedFiles", as_json: bool) -> None:
    if as_json:
        return output.print_json({"plan": plan, "state": "waiting", "wait_s": wait_s, "work": work})
    return output.echo(
        f"plan {plan} waits for its grace period: run `m5ws gc` in {output.duration(wait_s)} to execute it"
    )


def _print_done(plan: str, done: "GcResult", work: "RemovedFiles", as_json: bool) -> None:
    if as_json:
        return output.print_json({"plan": plan, "state": "done", "deleted": done, "work": work})
    spared = f"; kept {done.spared:,} that are needed again" if done.spared else ""
    return output.echo(f"plan {plan} is done: deleted {_totals(done)}{spared}")


def _planned(planned: "DeletionPlan", grace: float) -> str:
    plan = planned.plan
    totals = _totals(plan)
    stay = f"{plan.kept_objects:,} objects are needed, {plan.young_objects:,} others are younger than --older-than"
    if not plan.objects and not plan.checkpoints and not plan.copies:
        return f"nothing to delete: {stay}"
    lines = [f"to be deleted: {totals}", f"  {stay}", *(["", _table(plan), ""] if plan.freed else [])]
    if planned.id is None:
        return "\n".join([*lines, "dry run: the plan was not published"])
    when = f"in {output.duration(grace)}" if grace else "now"
    return "\n".join([*lines, f"plan {planned.id}: `m5ws gc` executes it {when}; until then nothing is deleted"])


def _totals(record: "GcPlan | GcResult") -> str:
    copies = f", {record.copies:,} copies of output files" if record.copies else ""
    return f"{record.checkpoints:,} checkpoints{copies}, {record.objects:,} objects, {output.size(record.size_bytes)}"


def _table(plan: "GcPlan") -> str:
    rows = [(freed.run, f"{freed.checkpoints:,}", f"{freed.copies:,}") for freed in plan.freed]
    return output.table(("RUN", "CHECKPOINTS", "COPIES"), rows)
